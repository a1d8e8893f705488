"""Objects by name, where one input holds several of a name: examples of one repository often call theirs alike.

What belongs together stands in one file, else in one folder; else the object counts that shares the most folders with the one that asks.
Where several are as near and differ, none of them is known to be meant.
"""

from collections.abc import Hashable
from pathlib import PurePath
from typing import Any

from msgspec import Struct, field

_MAX_FOLDERS = 32
"""Folders of a path that are compared."""


class _Candidates(Struct):
    """An object that stands for all that were added at one place, as long as they are the same."""

    value: Any
    is_one: bool = True


class Nearest(Struct, kw_only=True):
    """Objects of an input by key, each with the file that it stands in."""

    in_file: dict[tuple[Hashable, str], Any] = field(default_factory=dict)
    """The last one of each file."""
    in_folder: dict[tuple[Hashable, str], _Candidates] = field(default_factory=dict)
    below: dict[tuple[Hashable, str], _Candidates] = field(default_factory=dict)
    """Those in the folder and in the folders below it."""

    def add(self, key: Hashable, file: str, value: Any) -> None:
        """Add an object of a file."""
        self.in_file[key, file] = value
        folders = _folders(file)
        places = [(self.in_folder, folders[0]), *((self.below, folder) for folder in folders)]
        for places_of, folder in places:
            known = places_of.get((key, folder))
            if known is None:
                places_of[key, folder] = _Candidates(value)
            elif known.value != value:
                known.is_one = False

    def find(self, key: Hashable, file: str, *, only_beside: bool = False) -> Any | None:
        """Return the object that is meant in a file; None where none is known to be. `only_beside`: in its file or folder."""
        if (found := self.in_file.get((key, file))) is not None:
            return found
        folders = _folders(file)
        beside = self.in_folder.get((key, folders[0]))
        if beside or only_beside:
            return beside.value if beside and beside.is_one else None
        near = next((found for folder in folders if (found := self.below.get((key, folder)))), None)
        return near.value if near and near.is_one else None


def _folders(file: str) -> list[str]:
    """Return the folder of a file and those around it, the innermost first."""
    return [str(folder) for folder in PurePath(file).parents][:_MAX_FOLDERS] or ["."]
