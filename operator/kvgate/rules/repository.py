"""Rules about files, about kvgate's own words in them, and about what a repository requires."""

from functools import partial

from kvgate.findings.finding import Rule, Scope, Severity

_rule = partial(Rule, scope=Scope.FILES)

INVALID_FIELD = _rule(
    id="InvalidField", severities=(Severity.ERROR,), title="An InferenceDeployment has a field that its schema refuses."
)
NOT_ALLOWED = _rule(
    id="AdministratorMustAllow",
    severities=(Severity.ERROR,),
    title="A pod of an InferenceDeployment has a part that the administrator does not allow.",
    explanation="These are hostPath volumes, service accounts, init containers and further containers: `pods` in the values of the chart.",
)
UNKNOWN_KIND = _rule(
    id="UnknownKind",
    severities=(Severity.ERROR,),
    title="An object of the group kvgate.io has a kind that the group does not have.",
)
INVALID_YAML = _rule(
    id="InvalidYaml",
    severities=(Severity.ERROR,),
    title="A document is not valid YAML.",
    explanation="A Helm template must be rendered first.",
)
UNREADABLE = _rule(
    id="Unreadable",
    severities=(Severity.ERROR,),
    title="A file is missing, binary, too large, or cannot be opened; Helm or kustomize cannot render it; or kvgate itself fails on it.",
)
IGNORE_WITHOUT_REASON = Rule(
    id="IgnoreWithoutReason",
    severities=(Severity.WARNING,),
    scope=Scope.OWN_WORDS,
    title="A comment that ignores a rule gives no reason.",
    explanation="Nothing is ignored.",
)
IGNORE_UNUSED = Rule(
    id="IgnoreUnused",
    severities=(Severity.INFO,),
    scope=Scope.OWN_WORDS,
    title="A comment ignores a rule that finds nothing on its line, or in its document.",
)
COMMENT_NOT_UNDERSTOOD = Rule(
    id="CommentNotUnderstood",
    severities=(Severity.WARNING,),
    scope=Scope.OWN_WORDS,
    title="A comment that begins with kvgate: is neither an ignore nor a workload.",
)
INVALID_CONFIG = Rule(
    id="InvalidConfig",
    severities=(Severity.ERROR,),
    scope=Scope.OWN_WORDS,
    title="The configuration has a field or a value that it cannot have.",
    explanation="Nothing is judged.",
)
HEADROOM_BELOW_REQUIRED = Rule(
    id="HeadroomBelowRequired",
    severities=(Severity.ERROR,),
    scope=Scope.REQUIREMENTS,
    title="The expected headroom is smaller than the one that `.kvgate.yaml` requires.",
    explanation="Headroom is (capacity − demand of the guarantee) / capacity.",
)
REQUIRED_GUARANTEE_NOT_MET = Rule(
    id="RequiredGuaranteeNotMet",
    severities=(Severity.ERROR, Severity.WARNING),
    scope=Scope.REQUIREMENTS,
    title="The KV cache does not hold the guarantee that `.kvgate.yaml` requires.",
    explanation="It is a warning where the KV cache may hold it, because the prediction is an interval.",
)
ACCELERATOR_NOT_ALLOWED = Rule(
    id="AcceleratorNotAllowed",
    severities=(Severity.ERROR,),
    scope=Scope.REQUIREMENTS,
    title="The engine runs on an accelerator that `.kvgate.yaml` does not allow.",
)
REQUIREMENT_NOT_JUDGED = Rule(
    id="RequirementNotJudged",
    severities=(Severity.WARNING,),
    scope=Scope.REQUIREMENTS,
    title="A requirement of `.kvgate.yaml` cannot be judged, because a fact about the engine is missing.",
    explanation="It makes the exit code 1 with `--fail-on unknown`.",
)
