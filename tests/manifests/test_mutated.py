"""The examples with one part replaced by something odd: whatever is written, there is a report and no traceback."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
from kvgate.cli.reports.json_report import render

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent
EXAMPLES = sorted(FOLDER.glob("*/*/input.yaml"))
ODD: tuple[Any, ...] = (
    None, 3, -1, 1.5, "x", "", [], {}, True, False, [None], [[]], [{}], {"a": 1}, {"name": "x"}, "{{ .x }}", "$(A)", "9" * 30, "é", "--",
    ["--"], ["="], {"": 1}, [1, 2], "vllm", "'", '"',
)  # fmt: skip
MUTATIONS = 8
"""Of every example; any seed will do, and a thousand of each have been tried."""
Path_ = tuple[Any, ...]


def paths_in(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from paths_in(child, (*path, key))


def replaced(value: Any, path: Path_, new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.parent.relative_to(FOLDER).as_posix())
def test_an_odd_part_is_never_a_traceback(example: Path, tmp_path: Path) -> None:
    chance = random.Random(example.as_posix().removeprefix(FOLDER.as_posix()))
    documents = list(yaml.load_all(example.read_text(encoding="utf-8"), yaml.CSafeLoader))
    places = [(index, path) for index, document in enumerate(documents) for path in paths_in(document)]
    for _ in range(MUTATIONS):
        index, path = chance.choice(places)
        odd = chance.choice(ODD)
        changed = [replaced(d, path, odd) if i == index else d for i, d in enumerate(documents)]
        file = tmp_path / "x.yaml"
        file.write_text(yaml.dump_all(changed, Dumper=yaml.CSafeDumper, sort_keys=False), encoding="utf-8")
        report = run([str(file)], CheckOptions(accelerator="L4-24GB"))
        assert int(report.exit_code) in (0, 1, 2)
        assert "kvgate failed" not in render(report)
