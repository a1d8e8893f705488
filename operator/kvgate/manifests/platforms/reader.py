"""A reader: how one kind of document becomes engines, and by which words, kinds and neighbours such a document is known."""

import site
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct

from kvgate.manifests.pods.engine_found import FoundEngine, ReaderInput
from kvgate.manifests.pods.which_engine import WORDS_OF_VLLM
from kvgate.text.inert import inert_line

_ENTRY_POINTS = "kvgate.readers"
"""Group of the entry points by which other packages add readers."""


class Reader(Struct, frozen=True, kw_only=True):
    """Everything that kvgate knows about one kind of document; nothing about it stands anywhere else.

    Kinds are written as Kubernetes writes them: `Workspace.kaito.sh`, and `Pod` in the core group.
    """

    platform: str
    """Name of the platform in findings, and the folder of its examples in tests/manifests."""
    what: str
    """Words for people about the documents that it recognises."""
    reads: tuple[str, ...]
    """The fields that decide, as the platform writes them."""
    read: Callable[[ReaderInput], Iterator[FoundEngine]]
    words: tuple[str, ...] = WORDS_OF_VLLM
    """Words in small letters. A document with an engine of this reader has one of them; a text without any is not looked at."""
    kinds: tuple[str, ...] = ()
    """Kinds of the objects that it reads; where `recognises` decides, those that `kubectl kvgate` lists for it."""
    recognises: Callable[[ReaderInput], bool] | None = None
    """The test of a document whose kind does not decide, such as a file of Helm values; None: the kinds decide."""
    supporting: tuple[str, ...] = ()
    """Kinds of the objects that it looks up beside its own. They hold no engine themselves, and are read without a word of `words`."""
    bystanders: frozenset[str] = frozenset()
    """Kinds of any group that stand beside its engines, are not looked up and hold no engine, though they may name vLLM."""
    supports: Callable[[ReaderInput], bool] | None = None
    """The same by a test: True for a document that holds no engine, such as values which only support engines."""
    is_in_cluster: bool = True
    """`kubectl kvgate` lists its kinds. False where other listed objects hold the same engines, as of a Helm release."""

    def takes(self, given: ReaderInput) -> bool:
        return self.recognises(given) if self.recognises else given.document.group_kind in self.kinds


def name_of_kind(kind: str) -> str:
    return kind.partition(".")[0]


def resource_of_kind(kind: str) -> str:
    """Return the name of the resource as `kubectl api-resources` writes it: `workspaces.kaito.sh`, `pods`."""
    name, dot, group = kind.lower().partition(".")
    return f"{name}{'es' if name.endswith('s') else 's'}{dot}{group}"


@cache
def installed_readers() -> tuple[Reader, ...]:
    """Return the readers of installed packages; one that cannot be used is named in one line on stderr, and left out.

    Packages count where this Python installs them. Those in the current folder or on PYTHONPATH, as in a checkout, do not.
    """
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    found = list[Reader]()
    for file in (file for folder in folders for file in sorted(Path(folder).glob("*.dist-info/entry_points.txt"))):
        if f"[{_ENTRY_POINTS}]" not in file.read_text(encoding="utf-8", errors="replace"):
            continue
        from importlib.metadata import PathDistribution  # most installations have no such package

        for point in PathDistribution(file.parent).entry_points.select(group=_ENTRY_POINTS):
            try:
                reader: object = point.load()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a defect of another package costs its reader
                reader = error
            if isinstance(reader, Reader):
                found.append(reader)
            else:
                reason = f"{type(reader).__name__}: {reader}"
                line = (
                    f"kvgate: the reader {point.name} of {file.parent.stem} is left out, it is no Reader but {reason}"
                )
                print(inert_line(line), file=sys.stderr)
    return tuple(found)
