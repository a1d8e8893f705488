"""`$(NAME)` in a container's command, args and env values: expanded as the kubelet does it, or escaped.

The rules are those of Kubernetes 1.36, `Expand` in third_party/forked/golang/expansion/expand.go. The text is read once from the left:

| at a `$` | becomes | and reading goes on |
|---|---|---|
| `$$` | `$` | after both |
| `$(NAME)`: all up to the first `)`, whatever it is | its value; itself where there is none | after the `)` |
| `$(` without a `)` | itself | after the `(` |
| `$` and any other character | both | after both |
| `$` at the end | itself | – |
"""

import re
from collections.abc import Callable

from kvgate.text.patterns import pattern

_REFERENCE = pattern(r"\$(\$|\(([^)]*)\))")
"""Parts of a text that change; the other rules of the table leave it as it is, and hide no `$` from this pattern."""


def expand_references(text: str, value_of: Callable[[str], str | None]) -> str:
    """Return the text that a container gets; `value_of` returns None for a name without a value."""

    def replaced(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        value = value_of(match[2])
        return match[0] if value is None else value

    if "$" not in text:
        return text
    # Behind the last ")" no reference ends, and each that begins there would be looked for to the end of the text.
    end = text.rfind(")") + 1
    return _REFERENCE.sub(replaced, text[:end]) + text[end:].replace("$$", "$")


def escape_references(text: str) -> str:
    """Return a text that a container gets as `text`, whatever variables it has: each `$` is doubled, also one behind another."""
    return text.replace("$", "$$")
