"""The doors: each takes a question and returns its answer, or why it cannot ask it. Every one is a real process."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from controlplane.plane import ControlPlane
from every_door.question import NAMESPACE, NEW_NAMESPACE, Question, flags_of
from fleet.doors import KVGATE, scrape


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a door says; `facts` has only what it says. Headroom is a ratio, or bytes where a door shows bytes."""

    command: str
    facts: Mapping[str, str]
    sentence: str = ""
    admitted: bool | None = None
    exit_code: int | None = None
    headroom_ratio: float | None = None
    headroom_percent: int | None = None
    headroom_bytes: int | None = None
    is_of_other_replicas: bool = False
    """`kvgate size` chooses the replicas: its headroom is then that of other engines, and is not shown."""


@dataclass(kw_only=True)
class World:
    """The running processes, and the folder with one FILE for each question."""

    plane: ControlPlane
    metrics_port: int
    folder: Path
    admissions: Mapping[str, Answer]
    """The answers of the webhook, by the id of the question: it is asked after the controller has judged all objects."""

    def run(self, *arguments: str) -> tuple[str, subprocess.CompletedProcess[str]]:
        """Run `kvgate …` where the files are; return the command as a user types it, and its end."""
        done = subprocess.run([KVGATE, *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        return shlex.join(["kvgate", *arguments]), done

    @cached_property
    def compared(self) -> tuple[str, subprocess.CompletedProcess[str]]:
        """One `kvgate diff` from an empty folder to the folder of all questions."""
        command = ["diff", "nothing", self.folder.name, "-o", "json"]
        done = subprocess.run([KVGATE, *command], cwd=self.folder.parent, capture_output=True, text=True, check=False)
        return shlex.join(["kvgate", *command]), done

    def status(self, name: str) -> dict[str, Any]:
        """Return the status of an InferenceDeployment."""
        return dict(self.plane.request("GET", f"{STORED}/{name}").get("status", {}))


Door = Callable[[World, Question], "Answer | str"]
"""The text says why the question cannot be asked there."""
STORED = f"/apis/kvgate.io/v1alpha1/namespaces/{NAMESPACE}/inferencedeployments"
VERDICTS = ("Fits", "MayNotFit", "DoesNotFit", "Unknown", "NotJudged")
NO_OBJECT = "it takes an InferenceDeployment"
NOT_STORED = "the API server does not take the object"


def admit(plane: ControlPlane, path: Path) -> Answer:
    """`kubectl apply` of a file into a namespace that has no such object, as far as the webhook's answer."""
    done = plane.kubectl("apply", "--dry-run=server", "-n", NEW_NAMESPACE, "-f", str(path), check=False)
    warnings = [line for line in done.stderr.splitlines() if line.strip()]
    told = " ".join(warnings).replace(str(path), path.name)
    admitted = done.returncode == 0
    denied = re.sub(r"^.*denied the request: ", "", told)
    outcome = "refused" if not admitted else "warns" if warnings else "admitted"
    return Answer(command=f"kubectl apply -f {path.name}", facts={}, admitted=admitted, sentence=denied or outcome)


def webhook(world: World, question: Question) -> Answer | str:
    """The answer of the webhook to `kubectl apply`."""
    return world.admissions.get(question.id, NO_OBJECT)


def columns(world: World, question: Question) -> Answer | str:
    """The columns of `kubectl get infd`, and the condition Accepted."""
    if question.spec is None:
        return NO_OBJECT
    if question.id not in stored(world.plane):
        return NOT_STORED
    status = world.status(question.id)
    accepted = next((each for each in status.get("conditions", ()) if each["type"] == "Accepted"), {})
    header, row = world.plane.kubectl("get", "infd", question.id, "-n", NAMESPACE).stdout.splitlines()
    percent = row[header.index("HEADROOM%") :].partition("  ")[0].strip()
    return Answer(
        command=f"kubectl get infd {question.id}",
        facts={"reason": accepted.get("reason", "")},
        sentence=accepted.get("message", ""),
        admitted=accepted.get("status") != "False",
        headroom_percent=int(percent) if percent else None,
    )


def metric(world: World, question: Question) -> Answer | str:
    """The controller's scrape."""
    if question.spec is None:
        return NO_OBJECT
    if question.id not in stored(world.plane):
        return NOT_STORED
    mine = [line for line in scrape(world.metrics_port).splitlines() if f'inferencedeployment="{question.id}"' in line]
    ratio = [line for line in mine if line.startswith("kvgate_kv_cache_headroom_ratio{") and 'bound="expected"' in line]
    condition = [
        found[1]
        for line in mine
        if line.startswith("kvgate_condition{") and 'type="Accepted"' in line and line.endswith(" 1.0")
        for found in [re.search(r'status="(\w+)"', line)]
        if found
    ]
    return Answer(
        command='kvgate_kv_cache_headroom_ratio{bound="expected"}',
        facts={},
        admitted="False" not in condition if condition else None,
        headroom_ratio=float(ratio[0].rpartition(" ")[2]) if ratio else None,
        sentence=f'kvgate_condition{{type="Accepted"}}: {", ".join(condition) or "absent"}',
    )


def stored(plane: ControlPlane) -> set[str]:
    """Return the names of the InferenceDeployments that the API server has."""
    return {each["metadata"]["name"] for each in plane.request("GET", STORED)["items"]}


def check(world: World, question: Question) -> Answer | str:
    """`kvgate check FILE -o json`."""
    command, done = world.run("check", f"{question.id}.yaml", "-o", "json")
    return _judged(command, done, _document(done, "documents"))


def explain_file(world: World, question: Question) -> Answer | str:
    """`kvgate explain FILE -o json`."""
    command, done = world.run("explain", f"{question.id}.yaml", "-o", "json")
    return _judged(command, done, _document(done))


def explain(world: World, question: Question) -> Answer | str:
    """`kvgate explain` with flags: length and sequences together are a promise, a workload is one, else --guarantee states it."""
    options = question.options()
    is_typed = {"max_model_len", "max_num_seqs"} <= options.keys() or "workload" in options
    if not is_typed:
        options.setdefault("guarantee", question.guarantee())
    flags = [*flags_of(options), *_config_flag(question)]
    command, done = world.run("explain", *flags, "-o", "json")
    text = world.run("explain", *flags)[1].stdout
    sentence = next((line.strip() for line in text.splitlines() if line.startswith(VERDICTS)), "")
    return _judged(command, done, _document(done), sentence)


def requests(world: World, question: Question) -> Answer | str:
    """`kvgate explain --requests`: only `guarantee` and `workload` state a promise there."""
    line = question.options() | {"guarantee": question.guarantee()}
    if question.config is not None:
        line["model_config"] = question.config
    file = f"{question.id}.jsonl"
    (world.folder / file).write_text(json.dumps(line), encoding="utf-8")
    command, done = world.run("explain", "--requests", file, "-o", "jsonl")
    shown = json.dumps(
        {name: "…" if name == "model_config" else value for name, value in line.items()}, ensure_ascii=False
    )
    return _judged(f"echo '{shown}' > {file}; {command}", done, _document(done))


def size(world: World, question: Question) -> Answer | str:
    """`kvgate size`, restricted to the GPU, one GPU for an engine and the replicas that there are."""
    options = question.options()
    flags = {name: value for name, value in options.items() if name not in ("gpu", "kv_cache_dtype")}
    flags |= {"gpus": options["gpu"], "kv_cache_dtype": options.get("kv_cache_dtype", "auto")}
    replicas = (question.spec or {}).get("replicas", 1)
    limit = ["--max-gpus", str(replicas), "--all", "-o", "json"]
    command, done = world.run("size", *flags_of(flags), *_config_flag(question), *limit)
    candidates = [
        each
        for each in (json.loads(done.stdout)["candidates"] if done.stdout.startswith("{") else ())
        if each["tensor_parallel_size"] == each["pipeline_parallel_size"] == 1
    ]
    found = next((each for each in candidates if each["replicas"] == replicas), candidates[0] if candidates else None)
    if found is None:
        return _failed(command, done)
    is_same = found["replicas"] == replicas
    headroom = found["headroom_bytes"] if is_same else None
    return Answer(
        command=command,
        facts={"verdict": found["verdict"]},
        sentence=found["reason"] or f"{found['replicas']} × {found['accelerator']}",
        exit_code=done.returncode,
        headroom_bytes=headroom["expected"] if headroom else None,
        is_of_other_replicas=not is_same,
    )


def sweep(world: World, question: Question) -> Answer | str:
    """`kvgate sweep` at one point: this GPU, one GPU for an engine."""
    options = question.options()
    axes = ["--x", f"gpu={options.pop('gpu')}", "--y", "tensor_parallel_size=1", "-o", "csv"]
    command, done = world.run("sweep", *flags_of(options), *_config_flag(question), *axes)
    row = next(csv.DictReader(io.StringIO(done.stdout)), None)
    if row is None:
        return _failed(command, done)
    expected, demand = row["available_expected_bytes"], row["demand_bytes"]
    return Answer(
        command=command,
        facts={"verdict": row["verdict"]},
        sentence=row["refusal"],
        exit_code=done.returncode,
        headroom_bytes=int(expected) - int(demand) if expected and demand else None,
    )


def diff(world: World, question: Question) -> Answer | str:
    """`kvgate diff` from an empty folder to that of all questions: the verdict after."""
    command, done = world.compared
    engines = json.loads(done.stdout)["engines"]
    mine = (each["after"] for each in engines if Path(each["file"]).name == f"{question.id}.yaml")
    return _judged(command, done, next(mine, None))


DOORS: Mapping[str, tuple[str, Door]] = {
    "apply": ("kubectl apply", webhook),
    "get": ("kubectl get infd", columns),
    "metric": ("metric", metric),
    "check": ("kvgate check", check),
    "explain_file": ("kvgate explain FILE", explain_file),
    "explain": ("kvgate explain, flags", explain),
    "requests": ("kvgate explain --requests", requests),
    "size": ("kvgate size", size),
    "sweep": ("kvgate sweep", sweep),
    "diff": ("kvgate diff", diff),
}
"""The key in the questions file → the name on the page, and the door."""


def ask(world: World, question: Question) -> dict[str, Answer | str]:
    """Ask all doors; a text says why a door cannot."""
    return {key: question.cannot.get(key) or door(world, question) for key, (_, door) in DOORS.items()}


def _document(done: subprocess.CompletedProcess[str], key: str | None = None) -> dict[str, Any] | None:
    """Return the first judged document of an output, or None where there is none."""
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return None
    listed = answer[key] if key else answer if isinstance(answer, list) else [answer]
    return listed[0] if listed else None


def _judged(
    command: str, done: subprocess.CompletedProcess[str], document: Mapping[str, Any] | None, sentence: str = ""
) -> Answer:
    if document is None or document.get("error"):
        return _failed(command, done, str((document or {}).get("error") or ""))
    admission, cache = document.get("admission") or {}, document.get("kv_cache") or {}
    found = {name: document.get(name) for name in ("verdict", "decides", "confidence")}
    found |= {name: (document.get(name) or {}).get("verdict") for name in ("starts", "holds")}
    found |= {name: admission.get(name) or document.get(name) for name in ("decision", "reason")}
    messages = "; ".join(each["message"] for each in document.get("findings", ()))
    return Answer(
        command=command,
        facts={name: str(value) for name, value in found.items() if value is not None},
        sentence=sentence or admission.get("message") or messages,
        exit_code=done.returncode,
        headroom_ratio=cache.get("headroom_ratio"),
        headroom_bytes=cache.get("headroom_bytes"),
    )


def _failed(command: str, done: subprocess.CompletedProcess[str], error: str = "") -> Answer:
    """Return an answer without a judgement. Unknown where the error is a rule of that name: 2 is "could not be decided"."""
    lines = done.stderr.strip().splitlines()
    told = error or (lines[-1] if lines else "no engine")
    verdict = "Unknown" if done.returncode == 2 and re.match(r"(Error: )?Unknown\w+:", told) else "error"
    return Answer(command=command, facts={"verdict": verdict}, sentence=told, exit_code=done.returncode)


def _config_flag(question: Question) -> list[str]:
    return ["--model-config", f"{question.id}.json"] if question.config is not None else []
