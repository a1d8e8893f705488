"""Search for `.kvgate.yaml`; reading it is separate, because most runs do not need that."""

from collections.abc import Sequence
from pathlib import Path

from kvgate.cli.exits import BadInput
from kvgate.documents.bounded_files import repository_of
from kvgate.documents.reading import STDIN

NAME = ".kvgate.yaml"


def find_config(paths: Sequence[str], root: Path | None = None) -> Path | None:
    """The nearest one upward from each path that is checked, within its repository or the root; BadInput where they differ."""
    found = dict.fromkeys(filter(None, (_nearest(path, root) for path in paths)))
    if len(found) > 1:
        names = " and ".join(map(str, found))
        raise BadInput(f"the paths have different configurations, {names}: check them apart, or give --config")
    return next(iter(found), None)


def _nearest(path: str, root: Path | None) -> Path | None:
    start = Path() if path == STDIN else Path(path)
    folder = (start if start.is_dir() else start.parent).absolute()
    top = root.resolve() if root else repository_of(folder)
    for up in (folder, *folder.parents):
        if (up / NAME).is_file():
            return up / NAME
        if up.resolve() == top:
            break
    return None
