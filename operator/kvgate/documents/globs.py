"""Globs of paths and names, matched step by step: the time is that of path times glob, whatever somebody wrote."""

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache

ANY_FOLDERS = "**"
"""Step of a path that stands for no folder, or for any number of them."""


def path_matches(path: str, glob: str) -> bool:
    """Match a path as `.gitignore` does: `**` stands for any folders, a folder for all that is in it.

    The path has slashes, and no `./` before it; an empty one matches nothing, and the glob `.` any other.
    """
    glob = glob.removeprefix("./").rstrip("/")
    return bool(path) and (glob in ("", ".") or steps_match(path.split("/"), glob.split("/"), with_contents=True))


@lru_cache(maxsize=65536)
def any_path_matches(path: str, globs: tuple[str, ...]) -> bool:
    """Match a path with any of several globs; the answer is kept, because every engine and every finding of a file needs it."""
    return any(path_matches(path, glob) for glob in globs)


def steps_match(names: Sequence[str], globs: Sequence[str], *, with_contents: bool = False) -> bool:
    """Match names of folders and of a file with a glob for each. `with_contents`: a folder that matches stands for all in it."""
    places = _reached({0}, globs)
    for name in names:
        if with_contents and len(globs) in places:
            return True
        after = set[int]()
        for place in places - {len(globs)}:
            if globs[place] == ANY_FOLDERS:
                after |= {place, place + 1} if place == len(globs) - 1 else {place}
            elif _pattern(globs[place]).match(name):
                after.add(place + 1)
        places = _reached(after, globs)
    return len(globs) in places


def _reached(places: set[int], globs: Sequence[str]) -> set[int]:
    """Add the places behind `**`, which may stand for nothing; at the end it stands for something."""
    reached = set(places)
    for place in places:
        while place < len(globs) - 1 and globs[place] == ANY_FOLDERS:
            place += 1  # noqa: PLW2901 - walks on from here
            reached.add(place)
    return reached


def name_matches(name: str, glob: str | None) -> bool:
    """Match a name with a glob in which only `*` has a meaning; None matches any name."""
    return glob is None or _pattern(glob, only_stars=True).match(name) is not None


def literal(text: str) -> str:
    return re.sub(r"[*?\[]", r"[\g<0>]", text)


@lru_cache(maxsize=8192)
def _pattern(glob: str, *, only_stars: bool = False) -> re.Pattern[str]:
    """Translate a glob; the standard library's pattern never goes back behind a `*` that has found what follows it."""
    return re.compile(translate("*".join(map(literal, glob.split("*"))) if only_stars else glob))
