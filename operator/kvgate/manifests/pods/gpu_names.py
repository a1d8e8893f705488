"""GPUs and other hardware that names of instance types, compute classes and labels mention: `gpu-l4-24gb-x2`, `gpu_8x_a100_80gb_sxm4`."""

from collections.abc import Mapping
from functools import lru_cache

from kvgate import catalogue
from kvgate.budget import Accelerator
from kvgate.text.patterns import pattern

_MODELS = (
    "gb300", "gb200", "gh200", "b300", "b200", "h800", "h200", "h100", "h20", "a100", "a800", "a40", "a30", "a10g", "a10", "l40s", "l40",
    "l20", "l4", "t4", "v100", "mi355x", "mi350x", "mi325x", "mi300x", "mi250x", "mi210", "rtx-?pro-?6000", "rtx-?5090", "rtx-?4090",
    "rtx-?3090", "rtx-?6000-?ada", "rtx-?a6000", "rtx-?a5000",
)  # fmt: skip
"""Words that mean one model, or several that differ in form and memory."""
_MODEL = pattern(
    rf"(?:^|[^a-z0-9]|\d|\dx|nvidia|tesla|gpu)({'|'.join(_MODELS)})(?:ib)?(?:x\d+|(?<=x)\d)?(?:$|[^a-z0-9])"
)
"""A model between words; a number of GPUs may stand before or after it: `8xh100ib`, `h100x8`."""
_MEMORY = pattern(r"(?:^|[^a-z0-9])b?(\d{2,3})g[bi]?(?:$|[^a-z0-9])")
_FORMS: Mapping[str, str] = {"sxm": "-SXM-", "nvlink": "-SXM-", "pcie": "-PCIe-", "nvl": "-NVL-", "server": "-Server-"}
_NOT_WHOLE = pattern(r"vgpu|(?:^|[^a-z0-9])mig|\dg\.\d+gb|standard_nv(?:6|12|18)|-3e(?:$|[^a-z0-9])|[gr]6f\.")
"""Parts of a GPU, and boards whose names begin like another board's."""
_MAX_CHARACTERS = 200
_OTHER_HARDWARE = tuple(
    (pattern(rf"(?:^|[^a-z0-9])(?:{expression})(?:$|[^a-z])"), words)
    for expression, words in (
        (r"tpu|ct[4-7][a-z]*", "a TPU"),
        (r"neuron\w*|inferentia\d?|trainium\d?|(?:trn|inf)[12]n?", "AWS Neuron hardware"),
        (r"gaudi\d?|hpu|dl[12]q?\.\d", "an Intel Gaudi"),
        (r"intel[-_.]?(?:gpu|xpu|i915)|xpu|gpu\.intel\.com|i915|ipex|llm-scaler|intel/vllm", "a GPU of Intel"),
        (r"ascend\w*|npu", "a Huawei Ascend NPU"),
        (r"rbln|rebellions\.ai", "a Rebellions NPU"),
        (
            r"(?:cambricon|metax-tech|enflame|hygon|mthreads|kunlunxin|qualcomm)\.com|iluvatar\.ai",
            "an accelerator of another vendor",
        ),
    )
)
"""Words in names of resources, labels and images → the words for people."""


def gpus_in(name: str) -> tuple[Accelerator, ...]:
    """Return the GPUs that a name may mean; nothing where it mentions none, several models, or a part of a GPU."""
    return _gpus_in(name[:_MAX_CHARACTERS].lower())


@lru_cache(maxsize=1024)
def _gpus_in(name: str) -> tuple[Accelerator, ...]:
    text = name.replace("_", "-")
    models = set(_MODEL.findall(text))
    if len(models) != 1 or _NOT_WHOLE.search(name):
        return ()
    model, sizes = models.pop().replace("-", " "), {f"-{size}GB" for size in _MEMORY.findall(text)}
    if not sizes and (alias := catalogue.find_accelerator(model)):
        return (alias,)
    meant = map(catalogue.find_accelerator, catalogue.accelerators_meant(model))
    found = [each for each in meant if each is not None and "Laptop" not in each.product and "D-" not in each.name]
    found = [each for each in found if each.name.endswith(tuple(sizes))] or found if sizes else found
    forms = [form for word, form in _FORMS.items() if word in text]
    return tuple([each for each in found if any(form in each.name for form in forms)] or found)


def other_hardware_in(name: str) -> str:
    """Return the kind of hardware that a name mentions, where it is none that kvgate judges; else nothing."""
    text = name[:_MAX_CHARACTERS].lower()
    return next((words for expression, words in _OTHER_HARDWARE if expression.search(text)), "")
