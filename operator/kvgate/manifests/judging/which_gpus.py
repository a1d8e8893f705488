"""GPUs that an engine may run on, where its manifest names none or several: verdicts on each, folded into words."""

from collections.abc import Iterator, Mapping

from kvgate.findings.finding import any_one
from kvgate.findings.located import Located, Place, located
from kvgate.judge.assessment import OnGpus
from kvgate.judge.gpus_in_words import folded, names_text, needed_text
from kvgate.manifests.judging.gpus import Chosen
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.rules.manifests import ACCELERATOR_DECIDES, SEVERAL_ACCELERATORS
from kvgate.text.patterns import pattern

_ROCM_IMAGE = pattern(r"(?:^|[-_/:.])rocm")
_VENDORS: Mapping[str, str] = {
    "nvidia.com/": "nvidia",
    "volcano.sh/": "nvidia",
    "aliyun.com/": "nvidia",
    "amd.com/": "amd",
}
"""Beginning of the name of a resource → the vendor of the GPUs."""


def vendor_of(engine: FoundEngine) -> tuple[str, bool]:
    """Return (vendor of the GPUs, whether the manifest says so): by the resource, else by the image, else NVIDIA."""
    for hint in engine.hints:
        for beginning, vendor in _VENDORS.items():
            if hint.name == "resource" and hint.value.startswith(beginning):
                return vendor, True
    if any(_ROCM_IMAGE.search(image.text) for image in (engine.version, engine.image)):
        return "amd", True
    return "nvidia", engine.num_gpus.is_set


def which_start(engine: FoundEngine, found: OnGpus) -> Iterator[Located]:
    """Say on which GPUs it starts, where the verdicts differ."""
    if len({each.verdict for each in found.verdicts}) < 2:
        return
    needs = f"; {needed_text(found.needed)}" if found.needed else ""
    message = f"no GPU is named where kvgate looks: it {folded(found.verdicts)}{needs}"
    select = ("select nodes by nvidia.com/gpu.product",) if engine.is_in_a_pod else ()
    remedy = any_one(*select, "give --accelerator", "state the GPUs of its node pool in .kvgate.yaml")
    yield located(ACCELERATOR_DECIDES, Place(name="accelerator", path=engine.path), message, remedy)


def which_of_several(engine: FoundEngine, chosen: Chosen, found: OnGpus) -> Iterator[Located]:
    """Say on which of several named GPUs it starts, unless the verdict is the same on all for a reason that is not the GPU."""
    verdicts = found.verdicts
    kinds = {(each.verdict, each.reason) for each in verdicts}
    is_about_gpus = len(kinds) > 1 or any(each.lacking_bytes for each in verdicts)
    if not is_about_gpus and not chosen.may_be_unnamed:
        return
    names = names_text([each.name for each in verdicts])
    more = ", or on a node whose labels name none" if chosen.may_be_unnamed else ""
    verb = "is to" if chosen.must_start_on_all else "may"
    message = f"it {verb} run on any of {names}{more}: it {folded(verdicts, is_whole=False)}"
    at = Place(name="accelerator", path=chosen.path or engine.path)
    yield located(SEVERAL_ACCELERATORS, at, message, any_one("select one", "size for the least"))
