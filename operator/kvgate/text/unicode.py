"""Text that can be sent and stored. JSON may escape half of a surrogate pair (`"\\ud800"`), which is no character."""

import json
import re
from typing import Any

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
NOT_UNICODE = "it holds half of a surrogate pair, which is no Unicode character"


def has_lone_surrogate(value: Any) -> bool:
    """True where any text of a JSON value has one, keys included."""
    try:
        json.dumps(value, ensure_ascii=False, default=str, skipkeys=True).encode()
    except UnicodeEncodeError:
        return True
    return False


def parsed_has_lone_surrogate(text: str, value: Any) -> bool:
    """The same of what was parsed from a JSON text; nothing is walked through unless the text has such an escape or character."""
    return (not text.isascii() or _ESCAPED_SURROGATE.search(text) is not None) and has_lone_surrogate(value)
