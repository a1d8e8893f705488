"""A config.json that the user names, for models that the catalogue does not have."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from kvgate.cli.exits import BadInput
from kvgate.documents.bounded_files import read_text
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.fields import MAX_CHARACTERS, parse_config_text

QUANTIZATION_FILE = "hf_quant_config.json"
"""File in which ModelOpt 0.29 and older put what others write into config.json as `quantization_config`."""


class ModelConfig(Struct, frozen=True):
    """The text of a config.json, and the name that findings give it."""

    text: str
    where: str


def read_model_config(path: Path, *, inside: Path | None) -> ModelConfig:
    """Read a config.json with the hf_quant_config.json beside it, as vLLM does; `inside`: the folder that the path must not leave.

    Raises BadInput for a file that cannot be read.
    """
    config = _read(path, inside)
    stated = _content(config.text)
    if not stated or not quantization_beside(path, stated, inside=inside):
        return config
    beside = _read(path.with_name(QUANTIZATION_FILE), inside).text.removeprefix("\ufeff")
    text = f'{config.text.rstrip().removesuffix("}")}, "quantization_config": {beside}}}'  # the last of two keys counts
    return ModelConfig(text=text, where=f"{path} with {QUANTIZATION_FILE}")


def quantization_beside(path: Path, config: Mapping[str, Any], *, inside: Path | None) -> dict[str, Any]:
    """Return the quantisation from the file beside a config.json, under the key that vLLM gives it; empty if the config has its own.

    Raises BadInput for a file that cannot be read.
    """
    beside = path.with_name(QUANTIZATION_FILE)
    if config.get("quantization_config") is not None or not beside.is_file():
        return {}
    return {"quantization_config": _content(_read(beside, inside).text)}


def _read(path: Path, inside: Path | None) -> ModelConfig:
    try:
        text = read_text(path, max_bytes=MAX_CHARACTERS, inside=inside)
        _content(text)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not JSON: {error}") from None
    except ModelConfigError as error:
        raise BadInput(f"{path}: {error}") from None
    return ModelConfig(text=text, where=str(path))


@lru_cache(maxsize=64)
def _content(text: str) -> Mapping[str, Any]:
    """Parse each text once, however many engines and mappings name its file; a file that changed is another text."""
    return parse_config_text(text)
