"""Files that start programs and are no YAML: shell scripts, Makefiles, units of systemd and quadlets of Podman.

Each is one document, whose node is the whole text; nothing of it is run.
"""

from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import yaml

MAX_LAUNCH_BYTES = 256 << 10
"""Size of such a file that is read; a longer one is an archive that unpacks itself, or data."""
_BLOCK_BYTES = 1 << 20
_WORDS = (b"vllm", b"max-model-len", b"max_model_len", b"gpu-memory-utilization", b"gpu_memory_utilization")
"""Words in small letters, of which a text that starts vLLM has one."""
_LONGEST_WORD = max(map(len, _WORDS))


class Form(StrEnum):
    """The language of a file, in words for people."""

    SCRIPT = "shell script"
    MAKEFILE = "Makefile"
    UNIT = "systemd unit"
    QUADLET = "quadlet"


LAUNCH_FORMS = {
    ".sh": Form.SCRIPT,
    ".bash": Form.SCRIPT,
    ".zsh": Form.SCRIPT,
    ".sbatch": Form.SCRIPT,
    ".slurm": Form.SCRIPT,
    ".mk": Form.MAKEFILE,
    ".service": Form.UNIT,
    ".container": Form.QUADLET,
}
"""Ending of a name → the form."""
_MAKEFILES = ("Makefile", "makefile", "GNUmakefile")


def form_of(name: str) -> Form | None:
    """Return the form that a name shows; None for all other files."""
    return Form.MAKEFILE if name in _MAKEFILES else LAUNCH_FORMS.get(Path(name).suffix.lower())


def is_script(name: str, beginning: bytes) -> bool:
    """Return whether a file without an ending is a script, by its first line."""
    return beginning.startswith(b"#!") and not Path(name).suffix


def text_of_launch(file: BinaryIO) -> str | None:
    """Return the text of a file that may start vLLM; None where it does not. Raises ValueError where it is too long."""
    data = file.read(MAX_LAUNCH_BYTES + 1)
    if len(data) > MAX_LAUNCH_BYTES:
        tail = b""
        while data:
            if _is_of_interest(tail + data):
                raise ValueError(f"it has more than {MAX_LAUNCH_BYTES >> 10} KiB")
            tail, data = data[-_LONGEST_WORD:], file.read(_BLOCK_BYTES)
        return None
    return data.decode(errors="replace").replace("\r\n", "\n") if _is_of_interest(data) and b"\0" not in data else None


def _is_of_interest(data: bytes) -> bool:
    small = data.lower()
    return any(word in small for word in _WORDS)


def node_of_text(text: str) -> yaml.Node:
    """Return the whole text as one value, from the file's first line on."""
    start, end = yaml.Mark("", 0, 0, 0, None, 0), yaml.Mark("", len(text), text.count("\n"), 0, None, 0)
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, start, end)
