"""The data that outlives a release of kvgate: models, GPUs, prices, vLLM's options by release, images and defects.

They come with kvgate, and a newer bundle may take their place: a zip file that KVGATE_DATA names, in a cluster out of a ConfigMap. Its
bundle.json has the version of the schema and the SHA-256 of each file; one that does not match is refused as a whole, so that no verdict
rests on half of it.
"""

import os
from functools import lru_cache
from pathlib import Path

VARIABLE = "KVGATE_DATA"
SCHEMA = 1
"""Version of the columns and keys of the files. It rises when a reader of kvgate could not read what a bundle holds."""
MAX_BYTES = 64 << 20
"""Most that a bundle may unpack to."""
INDEX = "bundle.json"
FILES = {
    "accelerators.json": "catalogue", "models.jsonl": "catalogue", "drafts.jsonl": "catalogue", "fine_tunes.csv": "catalogue",
    "model_classes.csv": "catalogue", "prices.yaml": "catalogue", "advisories.csv": "vllm", "images.csv": "vllm",
    "metric_names.csv": "vllm", "options.json": "vllm", "program_options.csv": "vllm", "release_days.csv": "vllm",
    "tool_parsers.csv": "vllm",
}  # fmt: skip
"""The files of a bundle, each with the room whose data it is."""
_ROOMS = Path(__file__).resolve().parents[1]


class BadBundle(Exception):
    """The bundle cannot be used; the message says why and what to do."""


def read(name: str) -> bytes:
    """Return one file, of the bundle that is named or else of kvgate. Raises BadBundle."""
    if place := os.environ.get(VARIABLE):
        return _opened(place)[1][name]
    return own(name)


def text(name: str) -> str:
    """Return one file as text. Raises BadBundle."""
    return read(name).decode()


def lines(name: str) -> list[str]:
    """Return the lines of one file, without its comments. Raises BadBundle."""
    return [line for line in text(name).splitlines() if not line.startswith("#")]


def own(name: str) -> bytes:
    """Return one file as it came with kvgate."""
    return (_ROOMS / FILES[name] / "data" / name).read_bytes()


def version() -> str:
    """Return the version of the bundle that is named, or "" where the data are kvgate's own. Raises BadBundle."""
    place = os.environ.get(VARIABLE)
    return _opened(place)[0] if place else ""


@lru_cache(maxsize=1)
def _opened(place: str) -> tuple[str, dict[str, bytes]]:
    """Return the version and the files of a bundle, all of them checked."""
    import hashlib
    import json
    import zipfile
    import zlib

    def refused(why: str) -> BadBundle:
        return BadBundle(f"{VARIABLE}={place}: {why}; take the bundle of a release of kvgate, or unset the variable")

    try:
        with zipfile.ZipFile(place) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
                raise refused(f"it unpacks to more than {MAX_BYTES >> 20} MiB")
            index = json.loads(archive.read(INDEX))
            if (schema := index["schema"]) != SCHEMA:
                raise refused(f"its schema is {schema}, and this release of kvgate reads {SCHEMA}")
            files = {name: archive.read(name) for name in FILES}
            wrong = [name for name in FILES if hashlib.sha256(files[name]).hexdigest() != index["sha256"].get(name)]
            newest = str(index["version"])
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        zlib.error,
        RuntimeError,  # an encrypted member, or a compression that Python does not know
    ) as error:
        raise refused(f"it is no bundle of kvgate's data ({error})") from None
    if wrong:
        raise refused(f"{', '.join(wrong)} differ from the SHA-256 in {INDEX}")
    return newest, files
