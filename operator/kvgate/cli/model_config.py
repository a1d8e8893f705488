"""A config.json that the user names, for models that the catalogue does not have."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from kvgate.cli.exits import BadInput
from kvgate.documents.bounded_files import read_text
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.fields import MAX_CHARACTERS, parse_config_text
from kvgate.hf_config.formats.quantization import quantization_files, with_quantization_beside


class ModelConfig(Struct, frozen=True):
    """The text of a config.json, its path, and the files beside it that count."""

    text: str
    path: Path
    beside: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Return the name that findings give it."""
        return " with ".join((str(self.path), *filter(None, [" and ".join(self.beside)])))


def read_model_config(path: Path, *, inside: Path | None) -> ModelConfig:
    """Read a config.json with the quantisation file beside it, as vLLM does; `inside`: the folder that the path must not leave.

    Raises BadInput for a file that cannot be read.
    """
    config = _read(path, inside)
    stated = _content(config.text)
    files = files_beside(path, stated, inside=inside) if stated else {}
    if not files:
        return config
    return ModelConfig(text=json.dumps(with_quantization_beside(stated, files)), path=path, beside=tuple(files))


def files_beside(path: Path, config: Mapping[str, Any], *, inside: Path | None) -> dict[str, Mapping[str, Any]]:
    """Return the one file beside a config.json that states its quantisation, parsed, by its name; empty where there is none.

    Raises BadInput for a file that cannot be read.
    """
    beside = next((name for name in quantization_files(config) if path.with_name(name).is_file()), None)
    return {beside: _content(_read(path.with_name(beside), inside).text)} if beside else {}


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
    return ModelConfig(text=text, path=path)


@lru_cache(maxsize=64)
def _content(text: str) -> Mapping[str, Any]:
    """Parse each text once, however many engines and mappings name its file; a file that changed is another text."""
    return parse_config_text(text)
