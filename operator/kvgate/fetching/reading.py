"""The files of a checkpoint → what is published about it. Only configs, indexes and headers are read, and nothing is executed."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kvgate.checkpoint.not_fetched import Reason
from kvgate.checkpoint.published import Published
from kvgate.fetching.asked import MAIN, Asked
from kvgate.fetching.bounded_http import broken
from kvgate.fetching.files import CheckpointFiles
from kvgate.fetching.limits import CouldNotFetch
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.fields import MAX_CHARACTERS, parse_config_text
from kvgate.hf_config.quantization_files import quantization_files, with_quantization_beside
from kvgate.text.inert import inert

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
_Read = TypeVar("_Read")


def published(files: CheckpointFiles, asked: Asked) -> Published:
    """Return what the files say about the model. Raises CouldNotFetch."""
    config: Mapping[str, Any] = {}
    adapter: Mapping[str, Any] = {}
    if CONFIG in files.names:
        config = _config(files)
    elif ADAPTER_CONFIG in files.names:
        adapter = _json(files, ADAPTER_CONFIG)
    else:
        raise CouldNotFetch(
            Reason.FILE_NOT_FOUND,
            f"{asked.repository} in {files.source} has no {CONFIG}, so it is no model that vLLM loads",
            "name the repository of the model",
        )
    return Published(
        name=asked.name,
        revision="" if asked.revision == MAIN else asked.revision,
        commit=files.commit,
        source=files.source,
        config=config,
        adapter=adapter,
    )


def _config(files: CheckpointFiles) -> Mapping[str, Any]:
    """Return config.json with the quantisation that stands in files beside it."""
    config = _json(files, CONFIG)
    beside = {name: _json(files, name) for name in quantization_files(config) if name in files.names}
    return _understood(CONFIG, lambda: with_quantization_beside(config, beside))


def _json(files: CheckpointFiles, name: str) -> Mapping[str, Any]:
    """Return the values of a file; every character has one byte at least."""
    data = files.read(name, max_bytes=MAX_CHARACTERS)
    return _understood(name, lambda: parse_config_text(data.decode("utf-8-sig")))


def _understood(name: str, read: Callable[[], _Read]) -> _Read:
    """Call a reader of a file, whose errors do not name it."""
    try:
        return read()
    except (ModelConfigError, UnicodeDecodeError) as error:
        raise broken(f"{name} cannot be read: {inert(str(error)[:500])}") from None
