"""The catalogue files hold together: read as plain YAML, without kvgate's own reader."""

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

Entry = dict[str, Any]

DATA = Path(__file__).parents[3] / "operator" / "kvgate" / "catalogue" / "data"
INTERCONNECTS = {"nvlink", "xgmi", "ethernet", "pcie", "unified", "none"}
LAYER_COUNT_KEYS = {"num_hidden_layers", "num_layers", "n_layer", "decoder_layers", "layers_block_type"}
WIDTH_KEYS = {"hidden_size", "n_embd", "d_model"}
MODULE_LISTS = ("ignore", "modules_to_not_convert", "exclude_modules", "quantized_layers")
SMALL_FILE_BYTES = 8192
ABRIDGED = {"llava-hf/llava-1.5-7b-hf"}
"""Checkpoints whose own file leaves the shape to the defaults of the class."""


def load(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


READ: list[Entry] = json.loads((DATA / "accelerators.json").read_text(encoding="utf-8"))
SELDOM: list[Entry] = [
    {**entry, "date": dt.date.fromisoformat(entry["date"])} for entry in READ if "is_seldom" in entry
]
"""Entries that the generator makes of boards.csv and slices.csv."""
LISTED: list[Entry] = load(DATA / "accelerators.yaml")["accelerators"]
ACCELERATORS: list[Entry] = [*LISTED, *SELDOM]
ACCELERATOR_BY_NAME = {entry["name"]: entry for entry in ACCELERATORS}
SLICES = [entry for entry in ACCELERATORS if "parent" in entry]
MODEL_BY_STEM: dict[str, Entry] = {path.stem: load(path) for path in sorted((DATA / "models").glob("*.yaml"))}
MODELS = list(MODEL_BY_STEM.values())
WHOLE = [entry for entry in MODELS if "base" not in entry]
DERIVED = [entry for entry in MODELS if "base" in entry]


def shared_names(names_per_entry: Iterable[Iterable[str]]) -> list[str]:
    """Names that two entries claim, ignoring case and separators: `RTX-4090` and `RTX4090` are one name."""
    owners: Counter[str] = Counter()
    for names in names_per_entry:
        owners.update({re.sub(r"[^a-z0-9/]+", "", name.casefold()) for name in names})
    return [name for name, count in owners.items() if count > 1]


def text_config(entry: Entry) -> Entry:
    """The part of the config that describes the language model."""
    config: Entry = entry["config"].get("thinker_config") or {}
    config = {**entry["config"], **config}
    return {**config, **(config.get("text_config") or config.get("llm_config") or {})}


def has_memory_in_order(entry: Entry) -> bool:
    low, high = entry.get("memory_mib_range", [entry["memory_mib"]] * 2)
    nvml_mib = entry.get("nvml_memory_mib", high) + 5  # totals are logged to 0.01 GiB
    return all(type(mib) is int for mib in (low, entry["memory_mib"], high)) and (
        3072 <= low <= entry["memory_mib"] <= high <= nvml_mib
    )


def names_what_a_pod_requests(entry: Entry) -> bool:
    return bool(re.fullmatch(r"[a-z.]+/[a-z]+", entry["resource"])) and not any(
        label.endswith("-SHARED") or " " in label for label in entry["gpu_labels"]
    )


def describes_its_board(entry: Entry) -> bool:
    return (
        entry["vendor"] in {"nvidia", "amd", "intel"}
        and isinstance(entry["compute_capability"], str)
        and entry["interconnect"] in INTERCONNECTS
        and entry.get("unified_memory", False) == (entry["interconnect"] == "unified")
    )


def is_part_of_its_parent(entry: Entry) -> bool:
    parent, profile = ACCELERATOR_BY_NAME[entry["parent"]], entry["mig_profile"]
    return (
        entry["memory_mib"] <= parent["memory_mib"]
        and entry["compute_capability"] == parent["compute_capability"]
        and entry["mig_resource"] == f"nvidia.com/mig-{profile}"
        and f"{parent['gpu_labels'][0]}-MIG-{profile}" in entry["gpu_labels"]
        and all(name.endswith(profile) for name in [entry["name"], entry["product"], *entry["gpu_labels"]])
    )


def says_where_and_when_it_comes_from(entry: Entry) -> bool:
    return bool(entry["source"].strip()) and isinstance(entry["date"], dt.date)


def states_its_shape(entry: Entry) -> bool:
    text = text_config(entry)
    named = text["architectures"] and text["model_type"]
    sized = text.keys() & LAYER_COUNT_KEYS and text.keys() & WIDTH_KEYS
    return bool(named and (sized or entry["name"] in ABRIDGED))


def lists_one_kind_per_layer(entry: Entry) -> bool:
    text = text_config(entry)
    depths = {len(text[key]) for key in ("layer_types", "hybrid_override_pattern") if text.get(key)}
    return depths <= {text.get("num_hidden_layers")}


def has_a_bandwidth_with_its_source(entry: Entry) -> bool:
    """From a laptop's to today's fastest; null says that no vendor publishes it. A slice has no more than its parent."""
    rate, source = entry["memory_bandwidth_bytes_per_second"], entry["memory_bandwidth_source"]
    if rate is None:
        return str(source).startswith("not known: ")
    most = ACCELERATOR_BY_NAME[entry["parent"]]["memory_bandwidth_bytes_per_second"] if "parent" in entry else 10**13
    return type(rate) is int and 10**11 <= rate <= most and bool(source)


def derives_from_a_whole_entry(entry: Entry) -> bool:
    """One level: a chain of bases would be a second catalogue inside the first."""
    return entry["base"] in {each["name"] for each in WHOLE} and bool(entry.keys() & {"quantization_config", "config"})


def counts_whole_things(entry: Entry) -> bool:
    sizes = [entry[key] for key in ("parameters", "safetensors_bytes") if key in entry]
    return all(type(size) is int and size > 0 for size in sizes)


def reduces_modules_to_patterns(entry: Entry) -> bool:
    quantization = text_config(entry).get("quantization_config") or {}
    return all(len(quantization.get(key) or ()) < 40 for key in MODULE_LISTS)


def test_the_catalogues_are_large_enough() -> None:
    assert len(ACCELERATORS) >= 40
    assert len(MODELS) >= 300
    assert len({entry["config"]["architectures"][0] for entry in WHOLE}) >= 90


def test_boards_that_are_seldom_met_stand_in_tables() -> None:
    """Each has a doubt about its memory, because a verdict may rest on it."""
    assert [entry["name"] for entry in READ] == [entry["name"] for entry in ACCELERATORS]
    assert len(SELDOM) >= 90
    assert [entry["name"] for entry in SELDOM if entry["memory_mib_range"][0] >= entry["memory_mib_range"][1]] == []


def test_a_model_is_one_small_file() -> None:
    """Whoever looks one model up pays for this one only."""
    sizes = {path.name: path.stat().st_size for path in (DATA / "models").iterdir()}
    assert {name: size for name, size in sizes.items() if size > SMALL_FILE_BYTES} == {}


def test_no_two_accelerators_share_a_name() -> None:
    names = ([e["name"], e["product"], *e["aliases"], *e["gpu_labels"]] for e in ACCELERATORS)
    assert shared_names(names) == []


def test_no_two_models_share_a_name() -> None:
    assert shared_names([e["name"], *e["aliases"]] for e in MODELS) == []


def test_a_model_file_is_named_after_its_model() -> None:
    misnamed = {stem: e["name"] for stem, e in MODEL_BY_STEM.items() if stem != e["name"].replace("/", "--")}
    assert misnamed == {}


@pytest.mark.parametrize(
    ("entries", "confidences"),
    [(ACCELERATORS, {"measured", "inferred"}), (WHOLE, {"exact", "reconstructed"}), (DERIVED, {"derived"})],
    ids=["accelerators", "models", "derived models"],
)
def test_an_entry_says_how_far_to_trust_it(entries: list[Entry], confidences: set[str]) -> None:
    assert {entry["confidence"] for entry in entries} == confidences


@pytest.mark.parametrize("folder", ["models", "drafts"])
def test_the_file_that_is_read_has_what_people_edit(folder: str) -> None:
    """The twin is written by `make generate`."""
    entries = [load(path) for path in (DATA / folder).glob("*.yaml")]
    read = [json.loads(line) for line in (DATA / f"{folder}.jsonl").read_text(encoding="utf-8").splitlines()]
    as_json = {entry["name"]: json.loads(json.dumps({"aliases": [], **entry}, default=str)) for entry in entries}
    assert [row["name"] for row in read] == sorted(as_json, key=str.lower)
    assert [row["name"] for row in read if not row.items() <= as_json[row["name"]].items()] == []


CHECKS = {
    "an accelerator says where and when it comes from": (ACCELERATORS, says_where_and_when_it_comes_from),
    "an accelerator has low <= memory <= high <= NVML": (ACCELERATORS, has_memory_in_order),
    "an accelerator names what a pod requests": (ACCELERATORS, names_what_a_pod_requests),
    "an accelerator describes its board": (ACCELERATORS, describes_its_board),
    "an accelerator has a bandwidth with its source": (ACCELERATORS, has_a_bandwidth_with_its_source),
    "a MIG slice is part of its parent": (SLICES, is_part_of_its_parent),
    "a model says where and when it comes from": (MODELS, says_where_and_when_it_comes_from),
    "a model states its shape": (WHOLE, states_its_shape),
    "a model lists one kind per layer": (WHOLE, lists_one_kind_per_layer),
    "a model counts whole things": (MODELS, counts_whole_things),
    "a derived model names its base and the difference": (DERIVED, derives_from_a_whole_entry),
    "a model reduces modules to patterns": (WHOLE, reduces_modules_to_patterns),
}


@pytest.mark.parametrize(("entries", "holds"), CHECKS.values(), ids=CHECKS)
def test_every_entry(entries: list[Entry], holds: Callable[[Entry], bool]) -> None:
    assert entries
    assert [entry["name"] for entry in entries if not holds(entry)] == []
