"""`kvgate calibrate show`, `pin`, `drop`, `freeze` and `thaw`: on a file, on standard input, and on a cluster through kubectl."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from kvgate.budget.observed.starts import GpuAtStart, ObservedStart
from kvgate.calibration.keeping import SHARDS, setting_id, shard_of
from kvgate.calibration.records import read_records, write_records
from kvgate.cli.calibrate.command import calibrate
from support.starts import a_pods_start, a_start


def run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(calibrate, list(arguments), input=given)


def numbered(*starts: ObservedStart) -> tuple[ObservedStart, ...]:
    return tuple(replace(start, revision=number) for number, start in enumerate(starts, start=1))


def a_file(folder: Path, *starts: ObservedStart) -> Path:
    path = folder / "starts.jsonl"
    path.write_text(write_records(numbered(*starts)), encoding="utf-8")
    return path


PODS = numbered(
    a_pods_start(-3.0, "a"), a_pods_start(-3.0, "b"), a_pods_start(1.2, "c"),
    a_pods_start(-3.0, "d", namespace="lone"), a_pods_start(-3.0, "e", namespace="shared", gpu_at_start=GpuAtStart.SHARED),
)  # fmt: skip


def config_maps(**texts: str) -> str:
    items = [
        {"kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": "7"}, "data": {"starts.jsonl": text}}
        for name, text in texts.items()
    ]
    return json.dumps({"kind": "List", "items": items})


def test_each_setting_has_its_starts_whether_they_are_used_and_what_they_do() -> None:
    shown = run("show", "-", given=config_maps(**{"kvgate-calibration": write_records(PODS)}))
    assert shown.exit_code == 0
    assert f"setting {setting_id(PODS[0].key)} in namespace serving" in shown.output
    assert "predictions follow 2 starts: −3.00 GiB against the formulas, widened by 1 more" in shown.output
    assert "start 3: " in shown.output
    assert "other starts of the same setting reported something else" in shown.output
    assert (
        "predictions stay at the formulas, widened by 1 start (−3.00 GiB to −3.00 GiB); two objects on two nodes must agree"
        in shown.output
    )
    assert "alone: it widens and moves nothing of another object" in shown.output
    assert "another process held memory of its GPU" in shown.output


def test_json_has_every_start_with_its_reason() -> None:
    shown = json.loads(run("show", "-", "-o", "json", given=config_maps(x=write_records(PODS, frozen=["lone"]))).stdout)
    assert shown["frozen"] == ["lone"]
    serving = next(each for each in shown["settings"] if each["namespace"] == "serving")
    assert [(start["start"], start["state"], start["is_followed"]) for start in serving["starts"]] == [
        (1, "used", True), (2, "used", True), (3, "contradictory", False)
    ]  # fmt: skip
    assert serving["starts"][0]["pod"] == "a"


def test_json_makes_what_others_wrote_inert() -> None:
    hostile = write_records(numbered(a_pods_start(-3.0, "::error::no \x1b[2J")))
    shown = run("show", "-", "-o", "json", given=config_maps(x=hostile)).stdout
    assert "\\u001b" not in shown
    assert '"::' not in shown


@pytest.mark.parametrize(
    ("option", "count"), [("--namespace=lone", 1), ("--namespace=other", 0), ("--setting=0000000000", 0)]
)
def test_the_listing_can_be_narrowed(option: str, count: int) -> None:
    given = config_maps(x=write_records(PODS))
    assert len(json.loads(run("show", "-", option, "-o", "json", given=given).stdout)["settings"]) == count


def test_lines_that_cannot_be_read_are_told_and_the_others_shown(tmp_path: Path) -> None:
    path = a_file(tmp_path, a_start())
    path.write_text(path.read_text(encoding="utf-8") + "broken\n", encoding="utf-8")
    shown = run("show", str(path))
    assert shown.exit_code == 2
    assert "line 3: it is not a JSON object" in shown.output
    assert "start 1: " in shown.output


def test_nothing_learnt_is_no_error() -> None:
    assert run("show", "-", given=config_maps()).output == "no start was learnt\n"


def test_a_file_is_pinned_dropped_and_frozen(tmp_path: Path) -> None:
    path = a_file(tmp_path, a_start(-3.0), a_start(2.0))
    assert run("pin", "1", "--file", str(path)).exit_code == 0
    assert run("drop", "2", "--file", str(path)).exit_code == 0
    assert run("freeze", "*", "--file", str(path)).exit_code == 0
    records = read_records(path.read_text(encoding="utf-8"))
    assert [(start.is_pinned, start.is_dropped) for start in records.starts] == [(True, False), (False, True)]
    assert records.frozen == ("*",)
    shown = run("show", str(path)).output
    assert "frozen, nothing new is learnt: *" in shown
    assert "predictions follow 1 start: −3.00 GiB" in shown
    assert "dropped, and not learnt again" in shown
    assert run("pin", "1", "--undo", "--file", str(path)).exit_code == 0
    assert run("thaw", "*", "--file", str(path)).exit_code == 0
    records = read_records(path.read_text(encoding="utf-8"))
    assert (records.starts[0].is_pinned, records.frozen) == (False, ())


def test_a_number_that_nothing_has_changes_nothing(tmp_path: Path) -> None:
    path = a_file(tmp_path, a_start())
    before = path.read_text(encoding="utf-8")
    done = run("drop", "1", "9", "--file", str(path))
    assert done.exit_code == 2
    assert "no start has the number 9; `kvgate calibrate show` lists the numbers" in done.output
    assert path.read_text(encoding="utf-8") == before


@pytest.mark.parametrize("name", ["", "A", "a/b", "a/b/c", "**"])
def test_only_a_namespace_a_setting_in_it_or_everything_is_frozen(name: str) -> None:
    done = run("freeze", name)
    assert done.exit_code == 2
    assert "is not a namespace, NAMESPACE/SETTING or" in done.output


KUBECTL = """#!{python}
import json, pathlib, sys
place = pathlib.Path(__file__).parent
maps = json.loads((place / "maps.json").read_text())
if "get" in sys.argv:
    items = [each for each in maps if each["metadata"]["name"] in sys.argv]
    print(json.dumps({{"kind": "List", "items": items}}) if items else "")
else:
    body = json.load(sys.stdin)
    old = [each for each in maps if each["metadata"]["name"] == body["metadata"]["name"]]
    version = old[0]["metadata"]["resourceVersion"] if old else None
    if body["metadata"].get("resourceVersion") != version:
        sys.exit("Operation cannot be fulfilled: the object has been modified")
    body["metadata"]["resourceVersion"] = "8"
    (place / "maps.json").write_text(json.dumps([each for each in maps if each not in old] + [body]))
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the ConfigMaps of a cluster, behind a kubectl that answers from it."""
    program, maps = tmp_path / "kubectl", tmp_path / "maps.json"
    program.write_text(KUBECTL.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("KUBECTL", str(program))
    name = f"kvgate-calibration-{shard_of('serving')}"
    maps.write_text(
        json.loads(json.dumps(json.dumps(json.loads(config_maps(**{name: write_records(PODS)}))["items"]))),
        encoding="utf-8",
    )
    return maps


def stored(maps: Path) -> dict[str, str]:
    return {
        each["metadata"]["name"]: each["data"]["starts.jsonl"] for each in json.loads(maps.read_text(encoding="utf-8"))
    }


def test_in_the_cluster_a_start_is_pinned_through_kubectl(cluster: Path) -> None:
    assert "start 1: " in run("show").output
    assert run("pin", "3").exit_code == 0
    (text,) = stored(cluster).values()
    assert [start.is_pinned for start in read_records(text).starts] == [False, False, True, False, False]
    assert "predictions follow 1 start: +1.20 GiB" in run("show").output


def test_in_the_cluster_a_namespace_is_frozen_in_its_own_shard(cluster: Path) -> None:
    assert run("freeze", "lone").exit_code == 0
    assert run("freeze", "*").exit_code == 0
    texts = stored(cluster)
    assert read_records(texts[f"kvgate-calibration-{shard_of('lone')}"]).frozen == ("lone",)
    assert read_records(texts[f"kvgate-calibration-{shard_of('*')}"]).frozen[0] == "*"
    assert run("thaw", "*").exit_code == 0
    assert {name for text in stored(cluster).values() for name in read_records(text).frozen} == {"lone"}


def test_the_starts_of_an_older_release_are_pinned_in_their_shard(cluster: Path) -> None:
    items = json.loads(config_maps(**{"kvgate-calibration": write_records(PODS)}))["items"]
    cluster.write_text(json.dumps(items), encoding="utf-8")
    assert run("drop", "4").exit_code == 0
    texts = stored(cluster)
    assert texts["kvgate-calibration"] == write_records(PODS), "the old ConfigMap is never written"
    (start,) = read_records(texts[f"kvgate-calibration-{shard_of('lone')}"]).starts
    assert (start.revision, start.is_dropped) == (4, True)
    assert len(texts) <= SHARDS + 1


def test_a_place_that_is_none_is_told() -> None:
    assert "--place 'kvgate' is not NAMESPACE/NAME" in run("show", "--place", "kvgate").output
