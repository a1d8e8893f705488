"""The reasons why answers differ from the frozen ones: one row for each change that was meant.

A cause is named, quotes the sentence that decides it, and says which changes it explains. The first that explains a change takes it. Make
the predicate as narrow as the sentence: a change that none explains fails the comparison, and one that explains too much hides a defect.

    Cause(
        name="block-count-of-windows",
        sentence="A window keeps one block more than its length (vLLM 0.31, SlidingWindowManager).",
        explains=lambda question, before, after: question.kind == "what-ifs" and "gemma" in question.asked["model"]
        and before is not None and after is not None and before.verdict == after.verdict and before.rules == after.rules,
    ),
"""

import re
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from answers.records import Question, Row


class Cause(Struct, frozen=True, kw_only=True):
    """Why answers changed."""

    name: str
    sentence: str
    """The fact or the decision, with its source."""
    explains: Callable[[Question, Row | None, Row | None], bool]
    """(question, row before, row after) → whether this is why they differ. A row is None where the answer has no such engine."""


def _same(before: Row, after: Row, *but: str) -> bool:
    """Return whether two rows agree in everything that is compared, except in these fields."""
    return all(getattr(before, name) == getattr(after, name) for name in _COMPARED if name not in but)


_WITH_TOWERS = re.compile(
    r"-VL-|Mistral-Small-3|gemma-[34]|Qwen3\.[5-9]|Llama-4|Kimi-(VL|K2\.5|K3)|llava|whisper|Omni|EXAONE-4\.5"
)
"""Models whose towers were run."""
_COMPARED = ("verdict", "guarantee", "outcome", "headroom_ratio", "num_tokens", "rules")


def _on_any_gpu(question: Question, before: Row | None, after: Row | None) -> bool:
    """Nobody named a GPU, so it was Unknown, and is judged on the catalogue's."""
    if before is None or after is None or "UnknownAccelerator" not in str(before.rules):
        return False
    if before.verdict not in ("Unknown", after.verdict):
        return False
    given = question.asked.get("arguments")
    names_none = "--gpu" not in given and "--gpu-memory-bytes" not in given if given else not question.asked.get("gpu")
    return names_none and "UnknownAccelerator" not in str(after.rules)


def _on_all_that_a_name_means(question: Question, before: Row | None, after: Row | None) -> bool:
    """H100 is several GPUs, so it was Unknown, and is judged on all of them."""
    given = question.asked.get("arguments") or ("",)
    is_name_of_several = given[0] == "explain" and "--gpu" in given and given[given.index("--gpu") + 1] == "H100"
    was_unknown = before is not None and before.verdict == "Unknown" and "UnknownAccelerator" in str(before.rules)
    return is_name_of_several and was_unknown and after is not None and "UnknownAccelerator" not in str(after.rules)


def _is_unclamped(before: Row, after: Row) -> bool:
    """Headroom may be lower than -1, and absent where no capacity is expected."""
    same = before.headroom_ratio == after.headroom_ratio
    is_lower = before.headroom_ratio == "-1.0" and after.headroom_ratio and float(after.headroom_ratio) < -1
    return same or not after.headroom_ratio or bool(is_lower)


def _headroom(_: Question, before: Row | None, after: Row | None) -> bool:
    return (
        before is not None
        and after is not None
        and _same(before, after, "headroom_ratio")
        and _is_unclamped(before, after)
    )


def _output_is_assumed(question: Question, before: Row | None, after: Row | None) -> bool:
    """`kvgate size` with a prompt and no output refused the question, so there was no answer."""
    given = question.asked.get("arguments") or ("",)
    is_prompt_alone = given[0] == "size" and "--prompt-tokens" in given and "--output-tokens" not in given
    return is_prompt_alone and after is not None and (before is None or not before.verdict)


def _turns(before: Row | None, after: Row | None, *turns: tuple[str, str]) -> bool:
    if before is None or after is None or not _is_unclamped(before, after):
        return False
    return (before.verdict, after.verdict) in turns and _same(before, after, "verdict", "outcome", "headroom_ratio")


_ASSUMED = ("my-org/", "someone/")
"""Publishers of the drawn questions whose models nobody knows."""


def _assumed(question: Question, before: Row | None, after: Row | None) -> bool:
    words = f"{question.asked.get('path')} {question.asked.get('arguments')}"
    if "assumed-never-refused" in words:
        return after is not None and after.outcome == "AdmitWithWarning ModelAssumed"
    if question.kind == "commands":  # a table of candidates: some that were offered are not any more
        return any(name in words for name in _ASSUMED) and before is not None and "MayNotFit" in before.verdict
    is_assumed = after is not None and ":ModelAssumed" in after.rules and "error:" not in after.rules
    return is_assumed and _turns(before, after, ("MayNotFit", "DoesNotFit"), ("Unknown", "DoesNotFit"))


_QUIETER = frozenset(
    {"Oversubscribed", "KVCacheTooSmall", "MambaCacheBlocksExceeded", "ReleaseDecides", "SharedGpu", "UnknownModel"}
)


def _is_quieter(before: str, after: str) -> bool:
    """Return whether rules differ in nothing but warnings of some that are infos now, or are not said of one end of a range any more."""
    gone, come = set(before.split()) - set(after.split()), set(after.split()) - set(before.split())
    are_of_them = {each.partition(":")[2] for each in gone | come} <= _QUIETER
    return are_of_them and all(each.startswith("info:") for each in come) and bool(gone)


def _contradictory(_: Question, before: Row | None, after: Row | None) -> bool:
    rules = after.rules if after else ""
    is_contradictory = ":NameStatesAnotherFormat" in rules or ":SourcesContradict" in rules
    turns = ("MayNotFit", "DoesNotFit"), ("Fits", "MayNotFit"), ("Fits", "DoesNotFit"), ("Unknown", "DoesNotFit")
    return is_contradictory and _turns(before, after, *turns)


def _not_judged(question: Question, before: Row | None, after: Row | None) -> bool:
    if question.kind != "check" or before is None or after is None:
        return False
    is_exit = (before.outcome, after.outcome) == ("exit 2", "exit 0") and _same(before, after, "outcome")
    return is_exit or (before.verdict, after.verdict) == ("Unknown", "NotJudged")


def _shared(question: Question, _: Row | None, after: Row | None) -> bool:
    ranks = question.asked.get("data_parallel_size") or 1
    return question.kind == "what-ifs" and ranks > 1 and after is not None and after.guarantee == "Workload"


def _auto(question: Question, _: Row | None, __: Row | None) -> bool:
    asked = question.asked.get("arguments") or (question.asked.get("max_model_len"),)
    return question.kind in ("what-ifs", "commands") and not {"auto", "-1", -1}.isdisjoint(asked)


def _typed(question: Question, before: Row | None, after: Row | None) -> bool:
    words = [*(question.asked.get("arguments") or ())]
    if before is None or after is None or before.num_tokens != after.num_tokens:
        return False
    return words[:1] == ["sweep"] or not {"--max-model-len", "--max-num-seqs"}.isdisjoint(words)


def _skipped(_: Question, __: Row | None, after: Row | None) -> bool:
    return after is not None and after.outcome.partition(" ")[0] == "Skipped"


_NOW_READ = (
    "other-operators/playground-of-llmaz",
    "other-operators/streamer-of-llmaz",
    "kthena/ascend-scripts",
    "recipes/seed-oss",
)


def _is_read(question: Question, before: Row | None, after: Row | None) -> bool:
    """No reader found an engine, and one is found now: a document that was not understood is one no more."""
    was_not_understood = before is not None and before.rules == "info:NotUnderstood" and not (after and after.rules)
    return question.key.startswith(_NOW_READ) and (before is None or was_not_understood)


def _shared_memory_of_llmkube(question: Question, before: Row | None, after: Row | None) -> bool:
    if before is None or after is None or "/llmkube/" not in str(question.asked.get("path")):
        return False
    return _same(before, after, "rules", "headroom_ratio") and "warning:SharedMemoryTooSmall" in str(after.rules)


def _more_gpus(question: Question, before: Row | None, after: Row | None) -> bool:
    """`size` has more candidates; where no GPU is named, the smallest that suffices is smaller, or more of them decide."""
    if before is None or after is None:
        return False
    if (question.asked.get("arguments") or ("",))[0] == "size":
        return _same(before, after, "verdict")
    is_only_decided = set(before.rules.split()) ^ set(after.rules.split()) <= {"info:AcceleratorDecides"}
    is_smaller = int(after.num_tokens or 0) <= int(before.num_tokens or 0)
    return (
        question.kind == "check"
        and is_only_decided
        and is_smaller
        and _same(before, after, "headroom_ratio", "num_tokens", "rules")
    )


def _repacked(question: Question, before: Row | None, after: Row | None) -> bool:
    if before is None or after is None or (before.verdict, before.rules) != (after.verdict, after.rules):
        return False
    return "cpu_offload_gb" in question.asked and int(after.num_tokens or 0) < int(before.num_tokens or 0)


_BY_RELEASE = ("DeepSeek-V", "Kimi-Linear", "Qwen3-235B-A22B-FP8")
_REFUSED_BY_RELEASE = {"error:ParallelSizeRefused", "error:KVCacheDtypeRefused"}


def _blocks_follow_the_release(question: Question, before: Row | None, after: Row | None) -> bool:
    """Only models with MLA, or with experts in fp8 blocks: blocks of another size, or a cut or a cache that the release refuses."""
    model = str(question.asked.get("model"))
    if before is None or after is None or not any(part in model for part in _BY_RELEASE):
        return False
    added = {rule for rule in set(after.rules.split()) - set(before.rules.split()) if not rule.endswith(":KnownDefect")}
    if added & _REFUSED_BY_RELEASE:
        return after.verdict == "DoesNotFit"
    return "Qwen3" not in model and question.asked.get("vllm_version") not in (None, "0.33.0")


def _known_defect(question: Question, before: Row | None, after: Row | None) -> bool:
    """Known defects are told; anything else that differs has its own cause."""
    if before is None or after is None or ":KnownDefect" not in after.rules:
        return False
    rules = [rule for rule in after.rules.split() if not rule.endswith(":KnownDefect")]
    without = replace(after, rules=" ".join(rules))
    return _same(before, without) or any(
        cause.explains(question, before, without) for cause in CAUSES if cause.explains is not _known_defect
    )


CAUSES: tuple[Cause, ...] = (
    Cause(
        name="engine-is-read",
        sentence="llmaz's Playgrounds are read, and an image of vLLM with accelerators is an engine though its script is not seen.",
        explains=_is_read,
    ),
    Cause(
        name="not-judged",
        sentence="NotJudged is not Unknown: CPU, TPU, Gaudi, SGLang, TensorRT-LLM are not judged, and nothing fails for them.",
        explains=lambda question, before, after: (
            _not_judged(question, before, after)
            or (before is None and after is not None and after.verdict == "NotJudged")
        ),
    ),
    Cause(
        name="repacked-weights-stay",
        sentence="Up to vLLM 0.16 a weight that Marlin repacks is on the GPU again, whatever --cpu-offload-gb moved.",
        explains=_repacked,
    ),
    Cause(
        name="no-gpu-named",
        sentence="GPUs that nobody named are a set, not worlds: Fits where any catalogued one starts, with the set, and no warning.",
        explains=_on_any_gpu,
    ),
    Cause(
        name="several-gpus-of-a-name",
        sentence="A name of several GPUs, such as H100, is answered for all of them: they are a set, not worlds.",
        explains=_on_all_that_a_name_means,
    ),
    Cause(
        name="share-of-a-rank",
        sentence="A workload is the whole deployment's: each engine (replica × data-parallel rank) is judged with its share, rounded up.",
        explains=_shared,
    ),
    Cause(
        name="length-auto",
        sentence="With auto, FullContext is judged at the floor; without a floor the start alone decides.",
        explains=_auto,
    ),
    Cause(
        name="skipped",
        sentence="A skipped budget has decision Skipped and unchanged figures.",
        explains=_skipped,
    ),
    Cause(
        name="typed-load",
        sentence="On the command line length and sequences both as flags are the promise; where none is typed, the start alone decides.",
        explains=_typed,
    ),
    Cause(
        name="headroom-is-not-clamped",
        sentence="Headroom is (expected capacity − demand) / expected capacity, not clamped, null where no capacity is expected.",
        explains=_headroom,
    ),
    Cause(
        name="assumed-model-does-not-fit",
        sentence="A verdict on assumed facts is computed all the same: DoesNotFit is never softened in what is said, and refuses nothing.",
        explains=_assumed,
    ),
    Cause(
        name="contradictory-facts",
        sentence="Contradictory facts make Fits at most MayNotFit, and DoesNotFit stays; neither makes an error.",
        explains=_contradictory,
    ),
    Cause(
        name="shared-memory-of-llmkube",
        sentence="Pods of LLMKube have nothing at /dev/shm but extraVolumes (deployment_builder.go, constructDeployment).",
        explains=_shared_memory_of_llmkube,
    ),
    Cause(
        name="gpus-added",
        sentence="The catalogue has 28 GPUs more, smaller ones among them: engines without a named GPU and `size` are judged on them too.",
        explains=_more_gpus,
    ),
    Cause(
        name="named-by-a-fine-tuner",
        sentence="A fine-tune is its base by the end of its name, by a table, or in a format written in another way: no model is Unknown.",
        explains=lambda _, before, after: (
            before is not None
            and after is not None
            and "UnknownModel" in str(before.rules)
            and "UnknownModel" not in str(after.rules)
        ),
    ),
    Cause(
        name="nobody-can-act",
        sentence="A warning is one on which the owner can act: a cache that is expected to hold what it must, a limit of the scheduler, a "
        "shared GPU, a fact that kvgate lacks, and a release that another finding names are infos.",
        explains=lambda _, before, after: (
            before is not None
            and after is not None
            and _is_unclamped(before, after)
            and _same(before, after, "rules", "headroom_ratio")
            and _is_quieter(before.rules, after.rules)
        ),
    ),
    Cause(
        name="images-are-made-later",
        sentence="A range of releases of an image begins with the first that has the options which the manifest is written for.",
        explains=lambda _, before, after: (
            before is not None
            and after is not None
            and _same(before, after, "rules")
            and {"warning:OptionNotYet"} == set(before.rules.split()) ^ set(after.rules.split())
        ),
    ),
    Cause(
        name="output-assumed",
        sentence="A prompt alone states a workload: the output is assumed, at most 512 tokens, and said.",
        explains=_output_is_assumed,
    ),
    Cause(
        name="blocks-follow-the-release",
        sentence="Blocks of MLA, alone and beside recurrent states, sparse MLA's format in 0.11.0, the cache that DeepSeek-V4 asserts, and "
        "blocks of experts that a cut goes through are those of the release; vLLM's own classes were asked.",
        explains=_blocks_follow_the_release,
    ),
    Cause(
        name="towers-were-run",
        sentence="Towers of pictures and sounds take what vLLM's own classes took when they were run (tests/parity/towers_by_release).",
        explains=lambda question, before, after: (
            before is not None and after is not None and bool(_WITH_TOWERS.search(str(question.asked)))
        ),
    ),
    Cause(
        name="estimates-may-be-negative",
        sentence="vLLM does not clamp the first sample of its graph estimate: with drafts and recurrent states its low end is negative.",
        explains=lambda question, before, after: (
            before is not None
            and after is not None
            and "speculative" in str(question.asked)
            and _same(before, after, "verdict", "outcome", "rules")
        ),
    ),
    Cause(
        name="known-defect",
        sentence="Known defects of the release are told as notes; no figure changes.",
        explains=_known_defect,
    ),
)
