"""Tables of boards and slices that are seldom met → entries as in accelerators.yaml. Only `make generate` reads them."""

import csv
import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvgate.catalogue.lookup import DATA, read_yaml, seen_mib

READ_ON = dt.date(2026, 11, 28)
"""Day on which the figures of both tables were read."""
_DOUBT_MIB = 205
"""Difference of boards from the rule of `seen_mib`, at most."""
_LEAST_OF_SHARE, _SHARE = 0.90, 0.96
"""Memory of a slice by its share of the board's: at least, and usually (from 0.91 to 1.0 for the slices whose listings are known)."""
Entry = Mapping[str, Any]


def accelerators_json() -> str:
    """Return the entries of all tables as JSON, one a line: every start reads it, which takes a fiftieth of the time."""
    listed, peaks = read_yaml(DATA / "accelerators.yaml")["accelerators"], peaks_by_name(DATA)
    entries = [{**entry, **peaks.get(entry["name"], {})} for entry in (*listed, *seldom_entries(DATA, listed))]
    lines = ",\n".join(json.dumps(entry, default=str, ensure_ascii=False) for entry in entries)
    return f"[\n{lines}\n]\n"


def seldom_entries(folder: Path, listed: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """Yield the entries of both tables; `listed` are those of accelerators.yaml, among which the slices' boards are."""
    for row in _rows(folder / "boards.csv"):
        yield _board(row)
    by_name = {entry["name"]: entry for entry in listed}
    for row in _rows(folder / "slices.csv"):
        yield _slice(row, by_name[row["parent"]])


def peaks_by_name(folder: Path) -> Mapping[str, Entry]:
    """Return the peak arithmetic of the boards whose data sheet was read."""
    return {
        row["name"]: {
            "peak_bf16_flops": round(float(row["bf16"]) * 1e12),
            **({"peak_fp8_flops": round(float(row["fp8"]) * 1e12)} if row["fp8"] else {}),
            "peak_source": row["source"],
        }
        for row in _rows(folder / "peaks.csv")
    }


def _rows(path: Path) -> Iterator[dict[str, str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    yield from csv.DictReader(line for line in lines if not line.startswith("#"))


def _board(row: Mapping[str, str]) -> dict[str, Any]:
    is_amd, driver = row["capability"].startswith("gfx"), int(row["driver_mib"] or 0)
    seen = seen_mib(driver)
    # a process on Windows, or under WSL, sees all that nvidia-smi counts
    derived = {"memory_mib": seen, "low_mib": seen - _DOUBT_MIB, "high_mib": driver}
    memory, low, high = (int(row[key] or derived[key]) for key in ("memory_mib", "low_mib", "high_mib"))
    bandwidth = int(row["bandwidth_gb_s"]) * 10**9 if row["bandwidth_gb_s"] else None
    label = row["product"].replace(" ", "_" if is_amd else "-")
    return {
        "name": row["name"],
        "product": row["product"],
        "aliases": [alias for alias in row["aliases"].split(";") if alias],
        "vendor": "amd" if is_amd else "nvidia",
        "memory_mib": memory,
        "memory_mib_range": [low, high],
        **({"nvml_memory_mib": driver} if driver else {}),
        "compute_capability": row["capability"],
        "gpu_labels": [label] if row["aliases"] else [],
        "resource": "amd.com/gpu" if is_amd else "nvidia.com/gpu",
        "interconnect": row["links"],
        **({"unified_memory": True} if row["links"] == "unified" else {}),
        **({"sm_count": int(row["multiprocessors"])} if row["multiprocessors"] else {}),
        "memory_bandwidth_bytes_per_second": bandwidth,
        "memory_bandwidth_source": "the vendor's specifications" if bandwidth else "not known: not looked up",
        "source": f"{row['evidence']}; boards.csv",
        "confidence": "measured" if row["evidence"] == "reported" and row["memory_mib"] else "inferred",
        "date": READ_ON,
        "is_seldom": True,
    }


def _slice(row: Mapping[str, str], parent: Entry) -> dict[str, Any]:
    profile, share = row["profile"], int(row["share"]) / 8
    whole = round(parent["memory_mib"] * share)
    memory = int(row["memory_mib"] or round(whole * _SHARE))
    stem = parent["name"].rpartition("-")[0].removesuffix("-SXM")
    return {
        "name": f"{stem}-MIG-{profile}",
        "product": f"{parent['product']} MIG {profile}",
        "aliases": [],
        "vendor": "nvidia",
        "parent": parent["name"],
        "mig_profile": profile,
        "memory_mib": memory,
        "memory_mib_range": [min(memory, round(whole * _LEAST_OF_SHARE)), max(memory, whole)],
        "compute_capability": parent["compute_capability"],
        "gpu_labels": [f"{parent['gpu_labels'][0]}-MIG-{profile}"],
        "resource": "nvidia.com/gpu",
        "mig_resource": f"nvidia.com/mig-{profile}",
        "interconnect": "none",
        "sm_count": int(row["multiprocessors"]),
        "memory_bandwidth_bytes_per_second": round(parent["memory_bandwidth_bytes_per_second"] * share),
        "memory_bandwidth_source": f"{row['share']}/8 of the memory slices of {parent['name']} (NVIDIA MIG user guide)",
        "source": "nvidia-smi mig -lgip listings" if row["memory_mib"] else "derived from its share; slices.csv",
        "confidence": "measured" if row["memory_mib"] else "inferred",
        "date": READ_ON,
        "is_seldom": True,
    }
