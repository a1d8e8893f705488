"""Regular expressions of modules: compiled when they are first used, because a command uses few of the hundred that it imports."""

import re
from typing import Any, AnyStr, cast


def pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what `re.compile` returns, as far as matching and replacing go. An error in the text shows at the first use."""
    return cast("re.Pattern[AnyStr]", _Uncompiled(text, flags))


class _Uncompiled:
    """Stand for a compiled expression; its methods are looked up once and are its own from then on."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._text, self._flags)
        for method in ("match", "fullmatch", "search", "sub", "split", "findall", "finditer", "pattern"):
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)
