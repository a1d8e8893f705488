"""Four people in trouble, each with at most two commands in a real terminal: the cause and a change that fits are on the first screen.

KVGATE_UPDATE_GOLDEN=1 records `dialogues/` again; read the difference.
"""

import os
import shutil
from pathlib import Path

import pytest
from msgspec import Struct

from support import terminals
from support.terminals import require_tmux, terminal

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
CRASH_LOG = HERE.parents[1] / "docs/examples/crash.log"


class Dialogue(Struct, frozen=True, kw_only=True):
    name: str
    commands: tuple[str, ...]
    cause: str
    change: str

    def __str__(self) -> str:
        return self.name


DIALOGUES = (
    Dialogue(
        name="homelab-crash-log",
        commands=("kvgate why crash.log --gpu 4090",),
        cause="one request of 32768 tokens needs 8.00 GiB, 5.59 GiB more than there is",
        change="set --max-model-len to 5456 (checked: starts)",
    ),
    Dialogue(
        name="platform-chart-in-ci",
        commands=("kvgate check chart.yaml; echo exit $?",),
        cause="--swap-space is gone since 0.18.0",
        change="lower --max-model-len from 40960 to 16624 or less",
    ),
    Dialogue(
        name="administrator-pending-pod",
        commands=("kvgate why pod.txt", "kvgate check one-gpu.yaml"),
        cause="No node has as many free GPUs as the pod requests.",
        change="Fits: starts;",
    ),
    Dialogue(
        name="script-json",
        commands=(
            "kvgate why crash.log --gpu 4090 -o json > answer.json; echo exit $?",
            "python fixes.py answer.json",
        ),
        cause="KVCacheTooSmall",
        change="vllm serve Qwen/Qwen3-32B-AWQ --max-model-len 5456",
    ),
)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("dialogue", DIALOGUES, ids=str)
async def test_a_dialogue_is_as_it_was_recorded(
    pytestconfig: pytest.Config, tmp_path: Path, dialogue: Dialogue, columns: int
) -> None:
    tmux = require_tmux(pytestconfig)
    folder = shutil.copytree(HERE / "inputs", tmp_path / "work")
    shutil.copy(CRASH_LOG, folder)
    with terminal(tmux, folder, columns) as shown:
        for command in dialogue.commands:
            await shown.type(command)
        everything, joined, screen = shown.everything(), shown.everything(joined=True), shown.screen()
    assert everything == joined, "the terminal broke a line, and perhaps a word"
    words = " ".join(screen.split())
    assert dialogue.cause in words
    assert dialogue.change in words
    recorded = HERE / "dialogues" / f"{dialogue.name}-{columns}.txt"
    if os.environ.get("KVGATE_UPDATE_GOLDEN") == "1":
        recorded.write_text(f"{everything}\n", encoding="utf-8")
    assert f"{everything}\n" == recorded.read_text(encoding="utf-8")


def test_every_recorded_dialogue_is_played() -> None:
    played = {f"{dialogue.name}-{columns}.txt" for dialogue in DIALOGUES for columns in (80, 120)}
    assert {path.name for path in (HERE / "dialogues").iterdir()} == played
    assert all(len(dialogue.commands) <= 2 for dialogue in DIALOGUES)


@pytest.mark.parametrize(("value", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_tmux_skips_loudly_unless_it_is_required(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, value: str, outcome: type[BaseException]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(terminals, "say_loudly", lambda config, text: said.append(text))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("KVGATE_REQUIRE_TERMINAL", value)
    with pytest.raises(outcome, match="apt-get install tmux"):
        require_tmux(pytestconfig)
    assert len(said) == (0 if value else 1)
