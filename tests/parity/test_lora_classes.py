"""What vLLM's model classes offer to adapters, against the classes of 19 releases.

`lora_classes.csv` has a row for each span of releases in which a class stays the same: whether it derives from `SupportsLoRA`, has
`embedding_modules`, packs a matrix of one part (`packed_modules_mapping`), and sets `is_3d_moe_weight`; inherited attributes count. The
classes were read as syntax trees, by the rows of each release's own registry.
"""

import csv
from collections import defaultdict
from pathlib import Path

from kvgate.budget.releases.lora_classes import has_embeddings, holds_experts_as_one, is_one_module, takes_no_adapters
from kvgate.budget.releases.versions import Release, parse_release
from support.tables import table

ROWS = list(csv.DictReader((Path(__file__).parent / "lora_classes.csv").read_text(encoding="utf-8").splitlines()))
WRAPPERS = {
    "Exaone4_5_ForConditionalGeneration", "Llama4ForConditionalGeneration", "LlavaForConditionalGeneration",
    "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration", "VoxtralForConditionalGeneration",
}  # fmt: skip
"""Classes around a language model, which has the embedding modules in their place."""


NOT_CLAIMED = frozenset({"GptOssForCausalLM"})
"""Classes of which the budget claims nothing: a patch of the only release without `SupportsLoRA` may have it."""


def spans() -> dict[str, list[tuple[Release, Release, dict[str, str]]]]:
    found = defaultdict(list)
    for row in ROWS:
        found[row["architecture"]].append((parse_release(row["first"]), parse_release(row["last"]), row))
    return found


SPANS = spans()


READ = (6, 7, 8, 9, 10, 11, 12, 13, 14, 17, 19, 20, 22, 24, 27, 30, 32, 33)
"""Minor releases that were read."""


def minors(first: Release, last: Release) -> list[Release]:
    return [(0, minor) for minor in READ if first[1] <= minor <= last[1]]


@table("architecture", sorted(SPANS))
def test_a_class_refuses_adapters_where_vllms_does_not_take_them(architecture: str) -> None:
    refused = [(first, last) for first, last, row in SPANS[architecture] if row["takes_adapters"] == "no"]
    taken = [(first, last) for first, last, row in SPANS[architecture] if row["takes_adapters"] == "yes"]
    for span in taken:
        assert not any(takes_no_adapters(architecture, release) for release in minors(*span)), span
    if not refused or architecture in NOT_CLAIMED:
        return
    last = max(last for _, last in refused)
    open_end = 1 if taken else 0  # a later patch of the last minor may take them already
    for release in minors(refused[0][0], (0, last[1] - open_end)):
        assert takes_no_adapters(architecture, release), release
    assert not takes_no_adapters(architecture, (0, last[1] + 1))  # nobody read it, or it takes them


@table("architecture", sorted(SPANS.keys() - WRAPPERS))
def test_embeddings_are_adapted_where_the_class_names_them(architecture: str) -> None:
    for first, last, row in SPANS[architecture]:
        is_named = row["embedding_modules"] == "yes"
        for release in {first, last}:
            if is_named or not any(
                row["embedding_modules"] == "yes" for begin, _, row in SPANS[architecture] if begin == first
            ):
                assert has_embeddings(architecture, release) == is_named, release


@table(("architecture", "language_model", "since"), [
    ("Exaone4_5_ForConditionalGeneration", "Exaone4ForCausalLM", (0, 20)),
    ("Llama4ForConditionalGeneration", "Llama4ForCausalLM", (0, 12)),
    ("LlavaForConditionalGeneration", "LlamaForCausalLM", (0, 14)),
    ("Qwen3VLForConditionalGeneration", "Qwen3ForCausalLM", (0, 17)),
    ("Qwen3VLMoeForConditionalGeneration", "Qwen3MoeForCausalLM", (0, 17)),
    ("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM", (0, 30)),
    ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM", (0, 30)),
    ("VoxtralForConditionalGeneration", "LlamaForCausalLM", (0, 11)),
])  # fmt: skip
def test_a_wrapper_has_the_embeddings_of_its_language_model(
    architecture: str, language_model: str, since: Release
) -> None:
    assert has_embeddings(architecture, since)
    assert has_embeddings(language_model, since)
    assert not has_embeddings(architecture, (0, since[1] - 2))


@table(("architecture", "ours", "theirs"), [
    ("BaiChuanForCausalLM", "qkv_proj", "W_pack"),
    ("BaichuanForCausalLM", "qkv_proj", "W_pack"),
    ("ChatGLMModel", "qkv_proj", "query_key_value"),
    ("ChatGLMModel", "gate_up_proj", "dense_h_to_4h"),
    ("GraniteMoeHybridForCausalLM", "shared_experts", "input_linear"),
    ("Glm4vForConditionalGeneration", "gate_up_proj", "gate_up_proj"),
    ("InternLM2ForCausalLM", "qkv_proj", "wqkv"),
    ("Phi3ForCausalLM", "qkv_proj", "qkv_proj"),
    ("Phi3ForCausalLM", "gate_up_proj", "gate_up_proj"),
    ("Qwen3NextForCausalLM", "in_proj_qkvz", "in_proj_qkvz"),
    ("Qwen3NextForCausalLM", "in_proj_ba", "in_proj_ba"),
])  # fmt: skip
def test_a_matrix_is_one_module_where_the_class_packs_it_alone(architecture: str, ours: str, theirs: str) -> None:
    assert any(theirs in row["one_module"].split() for _, _, row in SPANS[architecture])
    assert is_one_module(architecture, ours)


@table("architecture", sorted(SPANS))
def test_experts_are_one_module_where_the_class_says_so(architecture: str) -> None:
    is_one = any(row["experts_as_one"] == "yes" for _, _, row in SPANS[architecture])
    assert holds_experts_as_one(architecture) == is_one
