"""Globs of paths as people know them from `.gitignore`: `**` stands for any folders, a folder for all that is in it."""

import re
from functools import lru_cache

_PARTS = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
_MEANINGS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def path_matches(path: str, glob: str) -> bool:
    """The path has slashes, and no `./` before it; an empty one matches nothing, and the glob `.` any other."""
    glob = glob.removeprefix("./").rstrip("/")
    return bool(path) and (glob in ("", ".") or _path_pattern(glob).fullmatch(path) is not None)


@lru_cache(maxsize=512)
def _path_pattern(glob: str) -> re.Pattern[str]:
    body = "".join(_MEANINGS.get(part) or re.escape(part) for part in _PARTS.findall(glob))
    return re.compile(f"{body}(?:/.*)?", re.DOTALL)


def name_matches(name: str, glob: str | None) -> bool:
    """`*` stands for any text; no glob, any name."""
    return glob is None or re.fullmatch(".*".join(map(re.escape, glob.split("*"))), name, re.DOTALL) is not None
