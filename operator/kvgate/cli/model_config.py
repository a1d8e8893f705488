"""A config.json that somebody names for models which nobody knows."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kvgate.cli.bad_input import BadInput


@dataclass(frozen=True)
class ModelConfig:
    """Its text, and what a finding calls it."""

    text: str
    where: str


def read_model_config(path: Path) -> ModelConfig:
    """Raises BadInput."""
    try:
        return _parsed(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInput(f"{path} is no JSON: {error}") from None


@lru_cache(maxsize=64)
def _parsed(text: str, where: str) -> ModelConfig:
    if not isinstance(json.loads(text), dict):
        raise TypeError("no object")
    return ModelConfig(text=text, where=where)
