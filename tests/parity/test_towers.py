"""The memory of vision and audio towers beside vLLM's own classes, whose tensors were followed on a CPU (`make kv-oracle`)."""

import csv
from statistics import median

from msgspec.structs import replace

from kv_oracle.__main__ import TOWERS, with_few_layers
from kvgate.budget.engine.run import run_of
from kvgate.budget.engine.settings import accounting_for, resolve_settings
from kvgate.budget.gpu.layer_activation import encoder_profile
from kvgate.judgement.what_if import read_request
from support.tables import table

UNLIKE = {
    (
        "0.20.0",
        "google/gemma-4-26B-A4B",
        "image",
    ): "transformers 5.8 makes positions one-hot, later ones do not; the profile run takes a video, which is larger",
    (
        "0.30.0",
        "moonshotai/Kimi-K2.5",
        "vision_chunk",
    ): "it rotates queries and keys one after the other; ours is a quarter too high",
}
"""(release, model, modality) → why ours is another."""
RELEASES = sorted(path.stem for path in TOWERS.glob("0.*.csv"))


def rows_of(version: str) -> list[dict[str, str]]:
    lines = (TOWERS / f"{version}.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(lines[1:]))


def compared(version: str, row: dict[str, str]) -> tuple[int, int, int, int]:
    """Our least, expected and highest peak for the row's positions, and that of vLLM's class."""
    values = {
        "model": row["model"], "model_config": with_few_layers(row), "gpu": "H100-SXM-80GB", "vllm_version": version,
        "tensor_parallel_size": int(row["tensor_parallel_size"]), "enforce_eager": row["enforce_eager"] == "yes",
    }  # fmt: skip
    request, problems = read_request(values)
    assert request is not None, problems
    accounting = accounting_for(request)
    run = run_of(request, resolve_settings(request, accounting), accounting, (0, len(request.shape.layers)))
    item, encoder = next(
        (item, encoder) for encoder in run.shape.encoders for item in encoder.items if item.modality == row["modality"]
    )
    positions = int(row["positions"])
    tokens = positions // encoder.patches_per_token * item.tokens // (item.encoded_tokens or item.tokens)
    run = replace(run, modalities=(item.modality,), max_num_batched_tokens=tokens, max_num_seqs=999)
    run = replace(run, circumstances=replace(run.circumstances, use_v2_model_runner=False))
    found = encoder_profile(run)
    theirs = int(row["peak_bytes"]) + int(row["input_bytes"])
    return found.least_bytes, found.peak_bytes, found.worst_bytes, theirs


@table(("version",), [(version,) for version in RELEASES])
def test_a_tower_takes_what_the_release_s_own_class_takes(version: str) -> None:
    rows = rows_of(version)
    found = [(row, *compared(version, row)) for row in rows]
    wrong = [
        (row, ours, theirs)
        for row, least, ours, most, theirs in found
        if not least <= theirs <= most and (version, row["model"], row["modality"]) not in UNLIKE
    ]
    assert len(rows) >= 14
    assert not wrong


def test_half_of_all_towers_are_within_a_fiftieth() -> None:
    shares = [
        abs(expected / theirs - 1)
        for version in RELEASES
        for row in rows_of(version)
        for _, expected, _, theirs in (compared(version, row),)
    ]
    assert len(RELEASES) >= 2
    assert median(shares) < 0.02
