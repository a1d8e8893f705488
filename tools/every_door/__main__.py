"""`PYTHONPATH=tools python -m every_door [FILE]`: ask every door, write the page, and end with 1 where doors disagree."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from controlplane.build import find_assets
from controlplane.plane import PROGRAMS, ControlPlane
from controlplane.programs import wait_until
from demo import ROOT, controller, install, webhook
from every_door.doors import Answer, World, admit, ask, stored
from every_door.page import disagreements, page
from every_door.question import NAMESPACE, NEW_NAMESPACE, Question, read_questions
from fleet.doors import scrape

TARGET = ROOT / "docs" / "one-deployment-every-door.md"
TERMINALS = {"COLUMNS": "200", "NO_COLOR": "1"}


def main() -> None:
    """Write the page, where the programs are built that it needs, and say where doors disagree."""
    assets = find_assets(PROGRAMS)
    if not assets:
        print(f"{TARGET.name} stays as it is: the control plane is missing, `make tools` builds it")
        return
    asked = ask_every_door(assets)
    target = Path(sys.argv[1]).resolve() if sys.argv[1:] else TARGET
    target.write_text(page(asked), encoding="utf-8")
    print(target)
    found = [text for question, answers in asked.values() for text in disagreements(question, answers)]
    if found:
        sys.exit("\n".join([f"the doors disagree in {len(found)} places:", *found]))


def ask_every_door(assets: Path) -> dict[str, tuple[Question, Mapping[str, Answer | str]]]:
    """Start the control plane, the controller and the webhook, and ask each question at each door; the key is its id."""
    os.chdir(ROOT)  # `demo` names its samples from there
    os.environ |= TERMINALS
    questions = read_questions()
    with ControlPlane(assets) as plane, tempfile.TemporaryDirectory(prefix="kvgate-doors-") as name:
        folder, logs = Path(name) / "asked", Path(name)
        folder.mkdir()
        (Path(name) / "nothing").mkdir()
        for question in questions:
            (folder / f"{question.id}.yaml").write_text(question.text(), encoding="utf-8")
            if question.config is not None:
                (folder / f"{question.id}.json").write_text(json.dumps(question.config), encoding="utf-8")
        install(plane)
        plane.kubectl("create", "namespace", NEW_NAMESPACE)
        owned = [question.id for question in questions if question.spec is not None]
        with controller(plane, logs) as metrics_port:
            _apply(plane, folder, owned)
            judged = stored(plane)
            wait_until(lambda: _judged(plane) >= judged, "the controller has judged every object")
            wait_until(lambda: _scraped(metrics_port, judged), "the metrics follow")
            with webhook(plane, logs), ThreadPoolExecutor(2) as threads:
                asked = threads.map(lambda name: (name, admit(plane, folder / f"{name}.yaml")), owned)
                world = World(plane=plane, metrics_port=metrics_port, folder=folder, admissions=dict(asked))
                _ = world.compared  # before a file with a request lies beside the manifests
                answers = threads.map(lambda question: ask(world, question), questions)
                return {question.id: (question, found) for question, found in zip(questions, answers, strict=True)}


def _apply(plane: ControlPlane, folder: Path, names: list[str]) -> None:
    """Before the webhook is registered, so that the controller judges also what the webhook refuses."""
    for name in names:
        plane.kubectl("apply", "-n", NAMESPACE, "-f", str(folder / f"{name}.yaml"), check=False)


def _judged(plane: ControlPlane) -> set[str]:
    found = json.loads(plane.kubectl("get", "infd", "-n", NAMESPACE, "-o", "json").stdout)["items"]
    return {
        each["metadata"]["name"]
        for each in found
        if any(condition["type"] == "Accepted" for condition in each.get("status", {}).get("conditions", ()))
    }


def _scraped(port: int, names: set[str]) -> bool:
    lines = [line for line in scrape(port).splitlines() if line.startswith("kvgate_condition{")]
    return all(
        any(f'inferencedeployment="{name}"' in line and 'type="Accepted"' in line for line in lines) for name in names
    )


if __name__ == "__main__":
    main()
