"""Where `.kvgate.yaml` is; reading it is another matter, which most runs do not need."""

from collections.abc import Sequence
from pathlib import Path

from kvgate.cli.bad_input import BadInput
from kvgate.manifests.documents import STDIN

NAME = ".kvgate.yaml"


def find_config(paths: Sequence[str]) -> Path | None:
    """The nearest one upward from each path that is checked; raises BadInput where they have different ones."""
    found = dict.fromkeys(filter(None, map(_nearest, paths)))
    if len(found) > 1:
        names = " and ".join(map(str, found))
        raise BadInput(f"the paths have different configurations, {names}: check them apart, or give --config")
    return next(iter(found), None)


def _nearest(path: str) -> Path | None:
    start = Path() if path == STDIN else Path(path)
    folder = (start if start.is_dir() else start.parent).absolute()
    return next((found for up in (folder, *folder.parents) if (found := up / NAME).is_file()), None)
