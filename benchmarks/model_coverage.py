"""The share of models with a verdict among the names that people deploy.

    python benchmarks/model_coverage.py [--list unknown|unmodelled|assumed]

`model_names.csv` has the names, where each was found, and how often. A name is *known* where the catalogue has its facts, *assumed* where
they are those of a sibling by name, *unmodelled* where the catalogue has it and a part of it has no formula, else *unknown*. Names of
models that vLLM does not run (they end as unknown) are left in.
"""

import argparse
import csv
from collections import Counter, defaultdict
from pathlib import Path

from kvgate.judgement.models import look_up_model

NAMES = Path(__file__).with_name("model_names.csv")
STANDINGS = ("known", "assumed", "unmodelled", "unknown")


def standing(name: str) -> str:
    """Return how far the model of a name is known."""
    shape, _ = look_up_model(name)
    if shape is None:
        return "unknown"
    if shape.unmodelled_kinds:
        return "unmodelled"
    return "assumed" if shape.assumed else "known"


def rows() -> list[tuple[str, str, int]]:
    """Return (name, kind of place, count) of each row."""
    lines = (line for line in NAMES.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return [(row["name"], row["kind"], int(row["count"])) for row in csv.DictReader(lines)]


def main() -> None:
    """Print the shares by kind of place: of the names, and weighted by their counts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--list", choices=STANDINGS, help="Print the names of one standing, the most frequent first.")
    wanted = parser.parse_args().list
    found = {name: standing(name) for name, _, _ in rows()}
    if wanted:
        counts = Counter[str]()
        for name, _, _ in rows():
            counts[name] += 1
        print(*(f"{count} {name}" for name, count in counts.most_common() if found[name] == wanted), sep="\n")
        return
    names, weights = defaultdict(Counter[str]), defaultdict(Counter[str])
    for name, kind, count in rows():
        names[kind][found[name]] += 1
        weights[kind][found[name]] += count
    names["all names, each once"] = Counter(found.values())
    weights["all names, each once"] = names["all names, each once"]
    print(f"{'':<34}{'names':>6}" + "".join(f"{each:>12}" for each in STANDINGS) + "   with a verdict, by count")
    for kind, counted in names.items():
        weighted = weights[kind]
        with_verdict = (weighted["known"] + weighted["assumed"]) / weighted.total()
        shares = "".join(f"{counted[each]:>12}" for each in STANDINGS)
        print(f"{kind:<34}{counted.total():>6}{shares}   {with_verdict:>8.1%}")


if __name__ == "__main__":
    main()
