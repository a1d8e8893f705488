"""Rules about the manifests of other platforms."""

from functools import partial

from kvgate.findings.finding import Rule, Scope, Severity

_rule = partial(Rule, scope=Scope.MANIFESTS)

MODEL_NOT_NAMED = _rule(
    id="ModelNotNamed",
    severities=(Severity.INFO,),
    title="No model is named where kvgate looks.",
    explanation="The engine cannot be judged.",
)
ACCELERATOR_DECIDES = _rule(
    id="AcceleratorDecides",
    severities=(Severity.INFO,),
    title="No GPU is named, and the engine starts on some GPUs of the catalogue and not on others.",
    explanation="The finding says on which, and the memory that one GPU must have. The verdict is Fits where it starts on any.",
)
SEVERAL_ACCELERATORS = _rule(
    id="SeveralAccelerators",
    severities=(Severity.INFO,),
    title="The engine may run on several kinds of GPU that are named, and it is not certain that it starts on all of them.",
    explanation="The worst verdict counts. It refuses the engine only where the configuration or the command line names the GPUs.",
)
OTHER_HARDWARE = _rule(
    id="OtherHardware",
    severities=(Severity.INFO,),
    title="The engine requests hardware that is not a GPU of NVIDIA or AMD: TPU, Gaudi, Neuron, Ascend, or a GPU of Intel.",
    explanation="kvgate does not judge it: the verdict is NotJudged, and nothing fails for it.",
)
OTHER_ENGINE = _rule(
    id="OtherEngine",
    severities=(Severity.INFO,),
    title="The engine is not vLLM: SGLang, TensorRT-LLM, Text Generation Inference, llama.cpp, a simulator, or the like.",
    explanation="kvgate does not judge it: the verdict is NotJudged, and nothing fails for it.",
)
TOO_FEW_GPUS = _rule(
    id="TooFewGpus",
    severities=(Severity.ERROR, Severity.WARNING),
    title="The pod has fewer GPUs than the parallel sizes need.",
    explanation="It is a warning where options that the input does not hold may set other sizes.",
)
IDLE_GPUS = _rule(
    id="IdleGpus", severities=(Severity.WARNING,), title="The pod has more GPUs than the parallel sizes use."
)
NOT_UNDERSTOOD = _rule(
    id="NotUnderstood",
    severities=(Severity.INFO,),
    title="A document, or a part of one, is about vLLM, and kvgate does not understand it.",
)
WRAPPER_OPTIONS = _rule(
    id="WrapperOptions",
    severities=(Severity.INFO,),
    title="Options that vLLM does not know are taken for those of the program that starts it.",
)
FIELD_IGNORED = _rule(
    id="FieldIgnored",
    severities=(Severity.WARNING, Severity.INFO),
    title="The platform does not read the field at this place, so it never reaches vLLM.",
    explanation="It is an info where the field means nothing elsewhere either.",
)
PATH_LEADS_NOWHERE = _rule(
    id="PathLeadsNowhere",
    severities=(Severity.WARNING, Severity.INFO),
    title="A path under fields of .kvgate.yaml does not lead to a value of its kind in these values.",
    explanation="It is an info where no field there has a similar name: the defaults of the chart may have the value.",
)
SERVICE_LINK = _rule(
    id="ServiceLink",
    severities=(Severity.ERROR, Severity.WARNING),
    title="A Service has such a name that Kubernetes sets one of vLLM's own variables in the pod to an address.",
    explanation=(
        "A Service `vllm` sets `VLLM_PORT=tcp://…`, which vLLM reads as a number and refuses. It is a warning where the Service may stand "
        "in another namespace, or something that is not seen may set the variable, or only some engines read it."
    ),
)
PROBE_TOO_IMPATIENT = _rule(
    id="ProbeTooImpatient",
    severities=(Severity.WARNING,),
    title="A probe kills the container before the fastest start could answer it.",
)
VOLUME_TOO_SMALL = _rule(
    id="VolumeTooSmall",
    severities=(Severity.WARNING,),
    title="The volume that weights are downloaded to has less room than they take.",
)
REPLICAS_DIFFER = _rule(
    id="ReplicasDiffer",
    severities=(Severity.INFO,),
    title="A Service sends requests to engines of one model whose KV caches differ by more than a quarter.",
    explanation="It takes them in turns, so that the one with the smaller cache preempts while the other has room.",
)
