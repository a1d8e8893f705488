"""Rules about the words of a command line: options, their values, variables; readers and the options of vLLM make their findings."""

from functools import partial

from kvgate.findings.finding import Rule, Scope, Severity

_rule = partial(Rule, scope=Scope.COMMAND_LINE)

OPTION_UNKNOWN = _rule(
    id="OptionUnknown",
    severities=(Severity.ERROR, Severity.WARNING),
    title="vLLM has no such option, and does not start with it.",
    explanation="It is a warning where another program takes the options, or where the release may be newer than those that kvgate knows.",
)
OPTION_AMBIGUOUS = _rule(
    id="OptionAmbiguous",
    severities=(Severity.ERROR,),
    title="The beginning of an option's name stands for several options.",
)
OPTION_VALUE = _rule(
    id="OptionValue",
    severities=(Severity.ERROR, Severity.WARNING),
    title="The option's value is missing, surplus, or one that vLLM does not take.",
    explanation=(
        "It is a warning where the release is newer than those that kvgate knows, and may take the value, or stands between two of which "
        "one does not."
    ),
)
PARSER_UNKNOWN = _rule(
    id="ParserUnknown",
    severities=(Severity.ERROR, Severity.WARNING),
    title="The release has no such reasoning or tool-call parser, and no plug-in is given.",
    explanation="It is a warning where a newer release than those that kvgate knows, or another program, may have the parser.",
)
OPTION_NOT_YET = _rule(
    id="OptionNotYet",
    severities=(Severity.ERROR,),
    title="The option came with a later release than the one that runs.",
)
OPTION_REMOVED = _rule(
    id="OptionRemoved", severities=(Severity.ERROR,), title="The option is gone from the release that runs."
)
OPTION_DEPRECATED = _rule(
    id="OptionDeprecated",
    severities=(Severity.INFO,),
    title="The option still works in this release, and will be removed.",
    explanation="Nothing is wrong until the release changes; `kvgate diff` shows what a change of the release does.",
)
OPTION_REPEATED = _rule(
    id="OptionRepeated",
    severities=(Severity.WARNING, Severity.INFO),
    title="The option is set twice; the later one counts.",
    explanation="It is an info where both have the same value.",
)
UNEXPECTED_WORD = _rule(
    id="UnexpectedWord",
    severities=(Severity.ERROR, Severity.WARNING),
    title="A word belongs to no option, and vLLM takes only one such word, its model.",
    explanation="It is a warning where the word may be the value of an option that only a newer release has, and where the program "
    "ignores it: `python -m vllm.entrypoints.openai.api_server` takes one such word from 0.10 on, and does nothing with it. A space before "
    "an option makes it a word: behind a backslash, in a text that YAML folds (`>`).",
)
VARIABLE_UNKNOWN = _rule(
    id="VariableUnknown",
    severities=(Severity.INFO,),
    title="A value comes from a variable that the input does not set.",
    explanation="The verdict is Unknown without a value that would decide.",
)
NO_EFFECT = _rule(
    id="NoEffect",
    severities=(Severity.WARNING, Severity.INFO),
    title="One option takes away the effect of another.",
    explanation="It is an info where some of the effect remains.",
)
LORA_NOT_ENABLED = _rule(
    id="LoraNotEnabled",
    severities=(Severity.ERROR, Severity.WARNING),
    title="Adapters are given, and LoRA is not enabled.",
    explanation="vLLM refuses to load them. It is a warning where options that the input does not hold may enable LoRA.",
)
TOOL_CALL_PARSER_MISSING = _rule(
    id="ToolCallParserMissing",
    severities=(Severity.ERROR, Severity.WARNING),
    title="Automatic tool choice is on, and no tool-call parser is given.",
    explanation=(
        "vLLM's API server does not start. It is a warning where options that the input does not hold may give a parser, or where a "
        "program around vLLM may do without one."
    ),
)
INVALID_SETTING = _rule(
    id="InvalidSetting",
    severities=(Severity.ERROR,),
    title="vLLM refuses a value of the command line that its parser lets pass.",
)
VALUE_NOT_KNOWN = _rule(
    id="ValueNotKnown",
    severities=(Severity.WARNING,),
    title="A setting or circumstance has a value that kvgate does not know.",
    explanation="The rest is judged; the interval holds all values of the setting that kvgate knows.",
)
POD_CANNOT_SERVE = _rule(
    id="PodCannotServe",
    severities=(Severity.ERROR, Severity.WARNING),
    title="The option makes vLLM listen in another way, or on several hosts.",
    explanation="The pod of an InferenceDeployment would never be ready. It is a warning where only its metrics are missing.",
)
VARIABLE_NOT_EXPANDED = _rule(
    id="VariableNotExpanded",
    severities=(Severity.WARNING,),
    title="An InferenceDeployment holds `$(NAME)`, which kvgate passes to vLLM as it is written.",
)
SECRET_IN_PLAIN_TEXT = _rule(
    id="SecretInPlainText",
    severities=(Severity.WARNING,),
    title="A variable of an InferenceDeployment has the name of a secret and a text for a value.",
    explanation="A Secret is the place for it.",
)
LOADS_UNJUDGED = _rule(
    id="LoadsUnjudged",
    severities=(Severity.WARNING, Severity.INFO),
    title="A variable lets vLLM's process load libraries, programs or weights that were not judged.",
    explanation="The verdict is about the image and the model that are named. Values that name files of the image are no such case."
    " In other manifests than an InferenceDeployment it is an info, because their author chooses everything else in the pod too.",
)
SETTING_MOVES_MEMORY = _rule(
    id="SettingMovesMemory",
    severities=(Severity.WARNING,),
    title="A variable or an option of an InferenceDeployment changes how much GPU memory vLLM takes.",
    explanation="No formula here knows the amount.",
)
OUTSIDE_CACHE_VOLUME = _rule(
    id="OutsideCacheVolume",
    severities=(Severity.WARNING,),
    title="A variable of an InferenceDeployment puts downloads or compiled kernels outside the cache volume of its pods.",
)
RELEASE_DECIDES = _rule(
    id="ReleaseDecides",
    severities=(Severity.WARNING, Severity.INFO),
    title="The image does not state its release, and the verdicts of the oldest and the newest that it may be differ.",
    explanation="It is an info where neither of them refuses, or another finding names the release that it is about.",
)
SHARED_GPU = _rule(
    id="SharedGpu",
    severities=(Severity.INFO,),
    title="The node shares the GPU between containers, in turns or at once.",
    explanation="The memory that the others take is not counted.",
)
RUNS_ON_CPU = _rule(
    id="RunsOnCpu",
    severities=(Severity.INFO,),
    title="The engine runs on CPUs, whose KV cache is main memory.",
    explanation="kvgate does not judge it: the verdict is NotJudged, and nothing fails for it.",
)
