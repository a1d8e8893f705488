"""Rules about facts: the model, the accelerator, the release; and about judgements that took too long."""

from functools import partial

from kvgate.findings.finding import Rule, Scope, Severity

_rule = partial(Rule, scope=Scope.FACTS)

UNKNOWN_MODEL = _rule(
    id="UnknownModel",
    severities=(Severity.WARNING, Severity.INFO),
    title="The model is not in the catalogue.",
    explanation="Nothing can be decided without its config.json. It is an info for an engine of another platform whose verdict is Unknown.",
)
UNKNOWN_DRAFT = _rule(
    id="UnknownDraft",
    severities=(Severity.WARNING, Severity.INFO),
    title="The model that drafts tokens for speculative decoding is not in the catalogue.",
    explanation=(
        "The verdict is Unknown, unless the model does not fit even without its draft. It is an info for an engine of another platform "
        "whose verdict is Unknown."
    ),
)
MODEL_ASSUMED = _rule(
    id="ModelAssumed",
    severities=(Severity.WARNING,),
    title="The model, or its class, is not known, and it is judged by a model of the same name, or by a class with the same tensors.",
    explanation="Its facts are assumed; the answer is Fits or MayNotFit, never a refusal.",
)
INVALID_MODEL_CONFIG = _rule(
    id="InvalidModelConfig",
    severities=(Severity.WARNING,),
    title="The config.json that is given for the model cannot be read.",
    explanation="Nothing can be decided without it.",
)
UNKNOWN_ACCELERATOR = _rule(
    id="UnknownAccelerator",
    severities=(Severity.WARNING, Severity.INFO),
    title="The accelerator is not named, its name means several (A100 is one of four), or it is not in the catalogue.",
    explanation="Nothing can be decided without it. It is an info for an engine of another platform whose verdict is Unknown.",
)
ACCELERATOR_NOT_LISTED = _rule(
    id="AcceleratorNotListed",
    severities=(Severity.INFO,),
    title="The accelerator is not in the catalogue.",
    explanation="gpu_memory_bytes is used, and its capabilities are not judged.",
)
NODES_CONTRADICT = _rule(
    id="NodesContradict",
    severities=(Severity.WARNING,),
    title="Labels of a node contradict each other, or the memory of the GPU that the catalogue has.",
    explanation=(
        "Only a controller that watches nodes reports it. The message has both figures; the verdict follows from the lesser one, is "
        "MayNotFit at best, and refuses nothing."
    ),
)
UNKNOWN_VERSION = _rule(
    id="UnknownVersion",
    severities=(Severity.WARNING, Severity.INFO),
    title="The release of vLLM is too old, or does not exist.",
    explanation=(
        "Nothing can be decided, because it is not known how the release accounts for memory. It is an info for an engine of another "
        "platform whose verdict is Unknown."
    ),
)
VERSION_ASSUMED = _rule(
    id="VersionAssumed",
    severities=(Severity.INFO,),
    title="No release of vLLM is given, and the newest that kvgate knows is assumed.",
)
MODEL_CLASS_NOT_IN_RELEASE = _rule(
    id="ModelClassNotInRelease",
    severities=(Severity.ERROR, Severity.WARNING),
    title="The release of vLLM does not have the model's class yet, or no longer has it.",
    explanation="It is a warning where the Transformers backend may serve the model.",
)
GGUF_NOT_IN_RELEASE = _rule(
    id="GgufNotInRelease",
    severities=(Severity.WARNING,),
    title="The release of vLLM loads GGUF files only with a plugin, or does not know this way to name one.",
    explanation="GGUF is part of vLLM up to 0.23. From 0.24 on it is a package of its own, which vLLM's images do not have.",
)
KNOWN_DEFECT = _rule(
    id="KnownDefect",
    severities=(Severity.INFO, Severity.WARNING),
    title="The release has a known defect that concerns an engine like this one.",
    explanation=(
        "The message says what it changes, and names vLLM's issue; no figure is changed for it. It is a warning where the defect decides "
        "the start of every such engine."
    ),
)
SETTING_NOT_UNDERSTOOD = _rule(
    id="SettingNotUnderstood",
    severities=(Severity.INFO,),
    title="A setting of a what-if is not one of vLLM's that change memory.",
    explanation="It changes no number.",
)
ASSESSMENT_STOPPED = Rule(
    id="AssessmentStopped",
    severities=(Severity.WARNING,),
    scope=Scope.TIME_LIMITS,
    title="Judging took longer than one object may take, and was stopped before there was a verdict.",
    explanation="The verdict is Unknown, which never refuses an object.",
)
SEARCH_STOPPED = Rule(
    id="SearchStopped",
    severities=(Severity.WARNING,),
    scope=Scope.TIME_LIMITS,
    title="The search for settings that would fit took longer than one object may take, and was stopped.",
    explanation="The verdict on the object as it is written stands.",
)
