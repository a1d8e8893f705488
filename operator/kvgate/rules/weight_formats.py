"""Rules about what is published of a model: formats that a release does not read, names and sources that contradict each other."""

from collections.abc import Iterable

from kvgate.budget import Budget, parse_release
from kvgate.findings.finding import Finding, Rule, Scope, Severity, any_one, do, leave_out, words
from kvgate.hf_config.names import PLAIN, stated_format, usual_quantization_config

_Minor = tuple[int, int]
FORMAT_RELEASES: dict[str, tuple[_Minor | None, _Minor | None]] = {
    "aqlm": (None, (0, 11)),
    "auto-round": ((0, 8), None),
    "bitblas": ((0, 7), (0, 16)),
    "bitsandbytes": (None, (0, 30)),
    "compressed-tensors with actorder": (None, (0, 30)),
    "compressed-tensors with sparse weights": (None, (0, 22)),
    "deepspeedfp": (None, (0, 16)),
    "fp8_per_block": ((0, 19), None),
    "fp8_per_channel": ((0, 23), None),
    "fp8_per_tensor": ((0, 19), None),
    "fp_quant": ((0, 11), None),
    "gptq with 2 or 3 bits": (None, (0, 22)),
    "gptq with desc_act": (None, (0, 30)),
    "gptq without sym": (None, (0, 22)),
    "gptq_bitblas": ((0, 7), (0, 16)),
    "gptq_marlin_24": (None, (0, 16)),
    "hqq": (None, (0, 16)),
    "int8_per_channel_weight_only": ((0, 19), None),
    "marlin": (None, (0, 11)),
    "modelopt_fp4": ((0, 7), None),
    "modelopt_mixed": ((0, 16), None),
    "modelopt_mxfp8": ((0, 14), None),
    "mxfp4": ((0, 9), None),
    "mxfp8": ((0, 18), None),
    "nvfp4_per_token": ((0, 25), None),
    "petit_nvfp4": ((0, 9), (0, 20)),
    "ptpc_fp8": ((0, 6), (0, 19)),
    "qqq": (None, (0, 11)),
    "quark": ((0, 6), None),
    "rtn": ((0, 8), (0, 16)),
    "torchao": ((0, 7), None),
}
"""Kind of `ModelShape.format_kinds` → (the last minor release before it, the first one that has it no more); None: there is none.

By the source of 23 releases from 0.6.6 to 0.33: `QUANTIZATION_METHODS`, and the checks of the methods. Where a release was not read,
the last one before it and the first one after it count.
"""

WEIGHT_FORMAT_NOT_IN_RELEASE = Rule(
    id="WeightFormatNotInRelease",
    severities=(Severity.WARNING,),
    scope=Scope.SETTINGS,
    title="The release does not read weights of this format by itself.",
    explanation="A package in the image may add the format, so nothing is refused.",
)


def weight_format_is_in_release(budget: Budget) -> Iterable[Finding]:
    version = budget.request.vllm_version
    minor = parse_release(version)[:2]
    for kind in budget.request.shape.format_kinds:
        before, gone = FORMAT_RELEASES.get(kind, (None, None))
        if (before and minor <= before) or (gone and minor >= gone):
            named = (
                f"0.{before[1] + 1} or newer"
                if before and minor <= before
                else f"0.{gone[1] - 1} or older"
                if gone
                else ""
            )
            yield WEIGHT_FORMAT_NOT_IN_RELEASE.finding(
                "model",
                f"vLLM {version} does not read {kind} weights by itself",
                any_one(
                    f"try vLLM {named}", "use another checkpoint of the model", "use an image that adds the format"
                ),
            )


_FAMILIES = (
    frozenset({"awq", "awq_marlin", "auto_awq"}),
    frozenset({"gptq", "gptq_marlin", "auto_gptq"}),
    frozenset({"modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"}),
    frozenset({"mxfp4", "gpt_oss_mxfp4"}),
    frozenset({"compressed-tensors"}),
    frozenset({"fp8"}),
    frozenset({"bitsandbytes"}),
)
"""Values of `--quantization` that vLLM takes for each other; others take checkpoints of several methods (`moe_wna16`, `marlin`)."""

QUANTIZATION_CONTRADICTS_CHECKPOINT = Rule(
    id="QuantizationContradictsCheckpoint",
    severities=(Severity.ERROR, Severity.WARNING),
    scope=Scope.SETTINGS,
    title="The quantization that is set is not the one that the checkpoint states.",
    explanation="vLLM does not start. It is a warning where the model is assumed by its name, and by the tool of its publisher.",
)


def quantization_is_that_of_the_checkpoint(budget: Budget) -> Iterable[Finding]:
    """`Quantization method specified in the model config … does not match`, or there is none to read: `Cannot find the config file for awq`
    (vLLM 0.6 to 0.33, `ModelConfig._verify_quantization` and `get_quant_config`)."""
    shape = budget.request.shape
    if shape.assumed is not None and usual_quantization_config(shape.name) is None:  # its config is a guess
        return
    requested = next((family for family in _FAMILIES if shape.requested_format in family), None)
    stated = next((family for family in _FAMILIES if shape.format_kinds and shape.format_kinds[0] in family), None)
    if shape.lacks_requested_format:
        yield QUANTIZATION_CONTRADICTS_CHECKPOINT.finding(
            "quantization",
            words(
                "{quantization} is {requested}, and {name} is published without quantisation: vLLM cannot find the config file for it",
                requested=shape.requested_format,
                name=shape.name,
            ),
            any_one(leave_out("quantization"), do("use a checkpoint of the model that is quantised so")),
        )
    elif requested and stated and requested is not stated:
        yield QUANTIZATION_CONTRADICTS_CHECKPOINT.finding(
            "quantization",
            words(
                "{quantization} is {requested} and the checkpoint's config states {stated}",
                requested=shape.requested_format,
                stated=shape.format_kinds[0],
            ),
            leave_out("quantization"),
        )


NAME_STATES_ANOTHER_FORMAT = Rule(
    id="NameStatesAnotherFormat",
    severities=(Severity.WARNING,),
    scope=Scope.FACTS,
    title="The model's name states a format of weights that its config does not state.",
    explanation="The verdict follows the config. While the two disagree, Fits becomes MayNotFit, and bytes refuse nothing.",
)


def name_and_config_agree(budget: Budget) -> Iterable[Finding]:
    """A name that states a format (`-AWQ`, `-FP8`), and a config of another model or without the file beside it."""
    shape = budget.request.shape
    stated = stated_format(shape.name)
    if stated is None or shape.unmodelled or shape.unmodelled_kinds or budget.request.weights_bytes is not None:
        return
    found = shape.stored_formats or frozenset({PLAIN})
    if "as-stored" in found or found & stated.formats:
        return
    counted = f"{' and '.join(sorted(found))}: the weights are counted so"
    if PLAIN in found:
        counted = "no quantisation: the weights are counted in the model dtype"
    beside = (
        "give the file that states the quantisation beside config.json (hf_quant_config.json, quantize_config.json)"
    )
    yield NAME_STATES_ANOTHER_FORMAT.finding(
        "model",
        f"the name {shape.name} states {' '.join(stated.kinds)}, and its config states {counted}",
        any_one("give the config.json of this checkpoint, not of the model that it was made from", beside),
    )


SOURCES_CONTRADICT = Rule(
    id="SourcesContradict",
    severities=(Severity.WARNING,),
    scope=Scope.FACTS,
    title="Two sources state different facts about the model: config.json, index, headers, a lock file, the catalogue.",
    explanation="A verdict Fits becomes MayNotFit, and what follows from these facts refuses nothing.",
)


def sources_agree(budget: Budget) -> Iterable[Finding]:
    if found := budget.contradictions:
        yield SOURCES_CONTRADICT.finding(
            "model",
            words(
                "two sources of {name} contradict each other: {listed}",
                name=budget.request.shape.name,
                listed="; ".join(each.words for each in found),
            ),
            any_one(
                "check which source is right, and correct the other one",
                "write the lock file anew with `kvgate models lock --update`",
            ),
        )
