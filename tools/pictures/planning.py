"""docs/planning.svg: what `kvgate sweep` draws for the command that docs/planning.md shows: `make generate`."""

from __future__ import annotations

from pathlib import Path

from kvgate.cli.sweep.heatmap import svg
from kvgate.cli.sweep.question import swept
from kvgate.planning.sweep import Sweep

TARGET = Path(__file__).resolve().parents[2] / "docs" / "planning.svg"
QUESTION = {
    "model": "Qwen/Qwen3-32B-FP8",
    "gpu": "H100-SXM-80GB",
    "vllm_version": "0.33.0",
    "x": "max_model_len=4K..40K+4K",
    "y": "max_num_seqs=1..20+1",
    "at": "16384,8",
}
"""The example of the README, around where memory runs out."""


def question() -> Sweep:
    """Return the cells of the picture."""
    return swept(QUESTION)


def picture() -> str:
    """Return the text of the SVG; the same for the same answer."""
    return svg(question())


def command() -> str:
    """Return the command that draws this picture."""
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in QUESTION.items())
    return f"kvgate sweep {options} --file planning.svg"


if __name__ == "__main__":
    TARGET.write_text(picture(), encoding="utf-8")
    print(TARGET)
