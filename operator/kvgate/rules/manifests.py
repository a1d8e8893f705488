"""Rules about the manifests of other platforms."""

from kvgate.findings.finding import Rule, Scope, Severity

MODEL_NOT_NAMED = Rule(
    id="ModelNotNamed",
    severities=(Severity.INFO,),
    scope=Scope.MANIFESTS,
    title="No model is named where kvgate looks.",
    explanation="The engine cannot be judged.",
)
ACCELERATOR_DECIDES = Rule(
    id="AcceleratorDecides",
    severities=(Severity.INFO,),
    scope=Scope.MANIFESTS,
    title="No GPU is named, and the engine starts on some GPUs of the catalogue and not on others.",
    explanation="The finding says on which, and the memory that one GPU must have. The verdict is Fits where it starts on any.",
)
SEVERAL_ACCELERATORS = Rule(
    id="SeveralAccelerators",
    severities=(Severity.INFO,),
    scope=Scope.MANIFESTS,
    title="The engine may run on several kinds of GPU that are named, and it is not certain that it starts on all of them.",
    explanation="The worst verdict counts. It refuses the engine only where the configuration or the command line names the GPUs.",
)
OTHER_HARDWARE = Rule(
    id="OtherHardware",
    severities=(Severity.INFO,),
    scope=Scope.MANIFESTS,
    title="The engine requests hardware that is not a GPU of NVIDIA or AMD: TPU, Gaudi, Neuron, Ascend, or a GPU of Intel.",
    explanation="kvgate does not judge it: the verdict is NotJudged, and nothing fails for it.",
)
OTHER_ENGINE = Rule(
    id="OtherEngine",
    severities=(Severity.INFO,),
    scope=Scope.MANIFESTS,
    title="The engine is not vLLM: SGLang, TensorRT-LLM, Text Generation Inference, llama.cpp, a simulator, or the like.",
    explanation="kvgate does not judge it: the verdict is NotJudged, and nothing fails for it.",
)
TOO_FEW_GPUS = Rule(
    id="TooFewGpus",
    severities=(Severity.ERROR, Severity.WARNING),
    scope=Scope.MANIFESTS,
    title="The pod has fewer GPUs than the parallel sizes need.",
    explanation="It is a warning where options that the input does not hold may set other sizes.",
)
IDLE_GPUS = Rule(
    id="IdleGpus",
    severities=(Severity.WARNING,),
    scope=Scope.MANIFESTS,
    title="The pod has more GPUs than the parallel sizes use.",
)
NOT_UNDERSTOOD = Rule(
    id="NotUnderstood",
    severities=(Severity.INFO,),
    scope=Scope.MANIFESTS,
    title="A document, or a part of one, is about vLLM, and kvgate does not understand it.",
)
WRAPPER_OPTIONS = Rule(
    id="WrapperOptions",
    severities=(Severity.INFO,),
    scope=Scope.MANIFESTS,
    title="Options that vLLM does not know are taken for those of the program that starts it.",
)
FIELD_IGNORED = Rule(
    id="FieldIgnored",
    severities=(Severity.WARNING, Severity.INFO),
    scope=Scope.MANIFESTS,
    title="The platform does not read the field at this place, so it never reaches vLLM.",
    explanation="It is an info where the field means nothing elsewhere either.",
)
PATH_LEADS_NOWHERE = Rule(
    id="PathLeadsNowhere",
    severities=(Severity.WARNING, Severity.INFO),
    scope=Scope.MANIFESTS,
    title="A path under fields of .kvgate.yaml does not lead to a value of its kind in these values.",
    explanation="It is an info where no field there has a similar name: the defaults of the chart may have the value.",
)
SERVICE_LINK = Rule(
    id="ServiceLink",
    severities=(Severity.ERROR, Severity.WARNING),
    scope=Scope.MANIFESTS,
    title="A Service has such a name that Kubernetes sets one of vLLM's own variables in the pod to an address.",
    explanation=(
        "A Service `vllm` sets `VLLM_PORT=tcp://…`, which vLLM reads as a number and refuses. It is a warning where the Service may stand "
        "in another namespace, or something that is not seen may set the variable, or only some engines read it."
    ),
)
PROBE_TOO_IMPATIENT = Rule(
    id="ProbeTooImpatient",
    severities=(Severity.WARNING,),
    scope=Scope.MANIFESTS,
    title="A probe kills the container before the fastest start could answer it.",
)
VOLUME_TOO_SMALL = Rule(
    id="VolumeTooSmall",
    severities=(Severity.WARNING,),
    scope=Scope.MANIFESTS,
    title="The volume that weights are downloaded to has less room than they take.",
)
