"""The text of a config.json → a mapping, with limits for texts that anybody may have written."""

import json
from math import inf, nan
from typing import Any

from kvgate.hf_config.fields import ModelConfigError
from kvgate.text.nesting import MAX_DEPTH, is_nested_beyond
from kvgate.text.unicode import NOT_UNICODE, parsed_has_lone_surrogate

MAX_CHARACTERS = 4_000_000
"""The longest published config.json (MiniMax-M3-NVFP4: 22,422 modules by name) has 2.4 million."""


_FLOAT = "__float__"
"""Key by which transformers writes numbers that JSON does not have: {"__float__": "Infinity"} (`PreTrainedConfig`)."""
_SPECIAL = {"Infinity": inf, "-Infinity": -inf, "NaN": nan}


def parse_config_text(text: str) -> dict[str, Any]:
    """The object as Python reads JSON: with `Infinity`, `-Infinity` and `NaN`, which published configs hold.

    Raises ModelConfigError for what is too long, not JSON, not an object, nested too deeply, or not Unicode.
    """
    if len(text) > MAX_CHARACTERS:
        raise ModelConfigError((f"it has {len(text)} characters; a config.json has less than {MAX_CHARACTERS}",))
    try:
        config = json.loads(text.removeprefix("\ufeff"), object_hook=_special_float if f'"{_FLOAT}"' in text else None)
        is_too_deep = is_nested_beyond(config, MAX_DEPTH)
        is_unicode = is_too_deep or not parsed_has_lone_surrogate(text, config)
    except (ValueError, RecursionError) as error:
        raise ModelConfigError((f"it is not JSON ({error})",)) from None
    if not isinstance(config, dict):
        raise ModelConfigError((f"it is JSON of type {type(config).__name__}, not an object",))
    if is_too_deep:
        raise ModelConfigError((f"it is nested deeper than {MAX_DEPTH} levels; a config.json has less than ten",))
    if not is_unicode:
        raise ModelConfigError((NOT_UNICODE,))
    return config


def _special_float(found: dict[str, Any]) -> Any:
    return _SPECIAL.get(str(found[_FLOAT]), found) if found.keys() == {_FLOAT} else found
