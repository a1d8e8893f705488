"""`make scale`: what a fleet costs the controller and the API server, beside the limits that are kept in git.

    PYTHONPATH=benchmarks:tools:tests python -m scale [--objects 1000] [--stages cold,settled,restart,fail-over,churn,webhook] [--write]

Time of processors and requests count, and not the time of a machine that others use too. A figure above its limit fails. `--write` keeps
the figures with a fifth more as limits, as Kueue does, and not above a goal that is reached.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path

from controlplane.build import ensure_assets
from controlplane.plane import PROGRAMS, ControlPlane
from scale import stages
from scale.fleet import add_nodes, controller, create
from support.inference import install

LIMITS = Path(__file__).with_name("limits.csv")
"""Columns: objects, stage, figure, measured, limit, goal."""
STAGES = ("cold", "settled", "restart", "fail-over", "churn", "webhook")
CHURNED_OBJECTS, EDITS_PER_SECOND, CHURN_SECONDS = 300, 10.0, 180.0
REVIEWS_PER_SECOND, REVIEW_SECONDS = 50.0, 20.0
SETTLED_SECONDS = 375.0
"""The longest time between two resyncs, and some more."""
HEADROOM = 1.2
Row = tuple[int, str, str]
"""Objects, stage and name of a figure."""


def measured(objects: int, chosen: frozenset[str]) -> Iterator[tuple[Row, float]]:
    """Run the stages, one control plane for those of a fleet and one for the churn."""

    def figures(stage: str, found: Mapping[str, float], count: int = objects) -> Iterator[tuple[Row, float]]:
        return (((count, stage, name), value) for name, value in found.items())

    if chosen & {"cold", "settled", "restart", "fail-over"}:
        with ControlPlane(ensure_assets(PROGRAMS)) as plane:
            install(plane)
            add_nodes(plane, objects)
            create(plane, objects)
            plane.begin_audit()
            with controller(plane) as process:
                yield from figures("cold", stages.cold(plane, process, objects))
                if "settled" in chosen:
                    yield from figures("settled", stages.settled(plane, process, SETTLED_SECONDS))
            if "restart" in chosen:
                yield from figures("restart", stages.restarted(plane, objects))
            if "fail-over" in chosen:
                yield from figures("fail-over", stages.failed_over(plane))
    if "churn" in chosen:
        with ControlPlane(ensure_assets(PROGRAMS)) as plane:
            install(plane)
            add_nodes(plane, CHURNED_OBJECTS)
            create(plane, CHURNED_OBJECTS)
            plane.begin_audit()
            with controller(plane) as process:
                stages.cold(plane, process, CHURNED_OBJECTS)
                found = stages.churned(plane, CHURNED_OBJECTS, per_second=EDITS_PER_SECOND, seconds=CHURN_SECONDS)
                yield from figures("churn", found, CHURNED_OBJECTS)
    if "webhook" in chosen:
        yield from figures("webhook", stages.reviewed(REVIEWS_PER_SECOND, REVIEW_SECONDS), 0)


def read_limits() -> dict[Row, dict[str, str]]:
    with LIMITS.open(encoding="utf-8", newline="") as lines:
        return {(int(row["objects"]), row["stage"], row["figure"]): row for row in csv.DictReader(lines)}


def write_limits(rows: Mapping[Row, Mapping[str, str]]) -> None:
    with LIMITS.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, ("objects", "stage", "figure", "measured", "limit", "goal"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows, key=lambda row: (STAGES.index(row[1]), row)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="scale", description="What a fleet costs the controller and the API server")
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--stages", default=",".join(STAGES), metavar="LIST")
    parser.add_argument("--write", action="store_true", help="keep the figures, with a fifth more as limits")
    arguments = parser.parse_args()
    rows, failed = read_limits(), []
    for (objects, stage, figure), value in measured(arguments.objects, frozenset(arguments.stages.split(","))):
        row = rows.get((objects, stage, figure), {"goal": "", "limit": "inf"})
        limit, goal = float(row["limit"]), row["goal"]
        failed += [f"{stage}: {figure} {value:.4g}, limit {limit:.4g}"] if value > limit else []
        print(
            f"{objects:6d} {stage:10} {figure:44} {value:10.4g}   limit {limit:8.4g}   goal {goal or '-'}", flush=True
        )
        about = {"objects": str(objects), "stage": stage, "figure": figure, "goal": goal}
        ceiling = float(goal) if goal and value <= float(goal) else inf
        kept = {"measured": f"{value:.4g}", "limit": f"{min(value * HEADROOM, ceiling):.4g}"}
        rows[objects, stage, figure] = {**about, **kept}
    if arguments.write:
        write_limits(rows)
    elif failed:
        sys.exit("\n".join(("make scale: above the limits of benchmarks/scale/limits.csv:", *failed)))


if __name__ == "__main__":
    main()
