"""The catalogue's name for a model as a manifest writes it."""

import re
from collections.abc import Container, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.checkpoint.published import name_key
from kvgate.documents.written import Written
from kvgate.judgement.siblings import sibling_of
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import is_open, is_placeholder

_SCHEMES = ("hf://", "huggingface://", "https://huggingface.co/", "pvc+hf://")
_PLACE = pattern(r"^(?:[a-z0-9+]+://|/|\./|~)")
_CACHED = pattern(r"models--([^/]+?)--([^/]+)")
"""A folder of Hugging Face's cache."""
_CLAIM = pattern(r"pvc://[^/]*/?")
"""A whole volume; what stands in it is not said."""
_CAPITALS = pattern(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
"""`MODEL_ID`: a name of a variable, and no model's."""


class ModelFound(Struct, frozen=True, kw_only=True):
    name: str
    path: str
    assumed: str = ""
    """Words about the guess, where the name was guessed."""
    is_place: bool = False
    """True where a path or an address is written: the name is only the end of it, and no hub must be asked for it."""


def model_id(written: str) -> str:
    """`hf://org/name@revision` → `org/name`; of a path its last two parts, which often are the name."""
    text = written.strip()
    if match := _CACHED.search(text):
        return f"{match[1]}/{match[2]}"
    for scheme in _SCHEMES:
        if text.startswith(scheme):
            rest = re.split(r"[@:?#]", text.removeprefix(scheme))[0].strip("/\"' ")
            return "/".join(rest.split("/")[-2:])
    if is_place(text):
        parts = [part for part in text.split("/") if part and not part.endswith(":")]
        return "/".join(parts[-2:]) if len(parts) > 1 else (parts[0] if parts else "")
    return re.split(r"@", text)[0].rstrip("/")


def is_place(written: str) -> bool:
    """A path or a volume: where the weights are, not what they are."""
    text = written.strip()
    return _PLACE.match(text) is not None and not text.startswith(_SCHEMES)


def find_model(named: Sequence[Written], locked: Container[str] = ()) -> ModelFound | None:
    """Return the first model that is named; a place is known by the other names, or by the name of its folder.

    `locked` has the keys of models whose facts somebody keeps in a file, places among them.
    """
    known = [each for each in named if each.text and not is_filled_in_later(each.text)]
    first = next(iter(known), None)
    if first is None:
        return None
    if is_place(first.text) and name_key(first.text) in locked:
        return ModelFound(name=first.text.strip(), path=first.path)
    plain = ModelFound(
        name=model_id(first.text), path=first.path, is_place=is_place(first.text) and not _CACHED.search(first.text)
    )
    if not is_place(first.text) or catalogue.find_model(plain.name) is not None:
        return plain
    for other in known[1:]:
        if not is_place(other.text) and catalogue.find_model(model_id(other.text)) is not None:
            name = model_id(other.text)
            return ModelFound(
                name=name, path=first.path, assumed=f"{first.text} holds {name}, by the name it is served as"
            )
    folder = _folder_of_a_model(first.text)
    names = [model_id(other.text) for other in known[1:] if not is_place(other.text)]
    # the name of a claim says nothing; that of a folder often is the model's
    hub_names = [name for name in names if "/" in name or _CLAIM.fullmatch(first.text.strip())]
    if folder is None and hub_names:
        assumed = f"{first.text} holds {hub_names[0]}, by the name that is given for it"
        return replace(plain, name=hub_names[0], assumed=assumed)
    return replace(plain, name=folder or plain.name)


def is_filled_in_later(written: str) -> bool:
    """Return whether somebody is to replace the text: a variable, a template's field, `<model>`, `YOUR_MODEL`, `/path/to/model`."""
    text = written.strip()
    if "://" in text and is_place(text) and not is_open(text):  # whoever names the bucket puts the same model into it
        text = text.rstrip("/").rpartition("/")[2]
    if is_open(text) or is_placeholder(text, in_part=True) or "path/to/" in text or _CAPITALS.fullmatch(text):
        return True
    return any(is_placeholder(part) for part in text.split("/"))


def _folder_of_a_model(place: str) -> str | None:
    """Return the end of a place that is called like a model of the catalogue: the model is then assumed from that one.

    Of an image the tag is tried first. Names of images hold no dots and no capitals.
    """
    last = place.rstrip("/").rpartition("/")[2]
    image, colon, tag = last.partition(":")
    # a frequent beginning of the names of images that hold one model
    folders = (each.removeprefix("modelcar-") for each in ((tag, image) if colon else (last,)))
    return next(filter(sibling_of, folders), None)
