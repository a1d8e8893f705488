"""A config.json that somebody names for models which nobody knows."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kvgate.bounded_files import read_text
from kvgate.cli.bad_input import BadInput
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.text import MAX_CHARACTERS, parse_config_text


@dataclass(frozen=True)
class ModelConfig:
    """Its text, and what a finding calls it."""

    text: str
    where: str


def read_model_config(path: Path, *, inside: Path | None) -> ModelConfig:
    """`inside`: the folder that the path must not lead out of. Raises BadInput."""
    try:
        return _parsed(read_text(path, max_bytes=MAX_CHARACTERS, inside=inside), str(path))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is no JSON: {error}") from None
    except ModelConfigError as error:
        raise BadInput(f"{path}: {error}") from None


@lru_cache(maxsize=64)
def _parsed(text: str, where: str) -> ModelConfig:
    parse_config_text(text)
    return ModelConfig(text=text, where=where)
