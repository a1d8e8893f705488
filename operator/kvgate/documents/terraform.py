"""Releases of Helm in Terraform (`helm_release`): the chart and the values that are written as literals. Nothing is evaluated.

HCL is read by python-hcl2, which the extra `terraform` installs. Arguments: registry.terraform.io, hashicorp/helm, "helm_release".
"""

import textwrap
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from msgspec import Struct

from kvgate import INSTALL
from kvgate.text.patterns import pattern

MAX_FILE_BYTES = 64 << 10
"""Size of a file that is read: HCL takes about 30 ms for each KiB."""
_LOCAL = pattern(rb'helm_release"(?s:.*?)chart\s*=\s*"(?:\.|\$\{path\.)')
_MODULE = pattern(r"\$\{path\.(?:module|root)\}/?")
_FILE = pattern(r'\$\{file\("([^"]+)"\)\}')
_ENCODED = pattern(r"(?s)\$\{(?:yaml|json)encode\((.*)\)\}")
_HEREDOC = pattern(r'(?s)"?<<(-?)(\w+)\n(.*?)\n?[ \t]*\2"?')
_OPEN = "${"


class NotRead(Exception):
    """Reason why a file, or a value in it, is not read."""


class Release(Struct, frozen=True, kw_only=True):
    """One `helm_release`, in the order in which later values win."""

    name: str
    chart: str
    """Path or name of the chart; paths are those below the module."""
    namespace: str
    values: tuple[Any, ...]
    """A text of YAML, a mapping, or the path of a file as `File`."""
    set_values: tuple[tuple[str, str], ...]
    unread: tuple[str, ...]
    """Values that are not literals."""


class File(Struct, frozen=True, kw_only=True):
    """A file of values, by its path below the module."""

    path: str


def has_releases(data: bytes) -> bool:
    """Return whether a file may have a release of a chart that lies beside it."""
    return _LOCAL.search(data) is not None


def releases_in(text: str) -> Iterator[Release]:
    """Yield the releases of one file. Raises NotRead."""
    if find_spec("hcl2") is None:
        raise NotRead(f"python-hcl2 is not installed, which reads Terraform: {INSTALL.format(extras='terraform')}")
    for block in _parsed(text).get("resource", ()):
        for kind, named in block.items():
            if kind.strip('"') == "helm_release":
                yield from (_release(fields) for fields in named.values() if isinstance(fields, Mapping))


def _parsed(text: str) -> Mapping[str, Any]:
    """Raises NotRead."""
    import hcl2

    try:
        read: Mapping[str, Any] = hcl2.loads(text)
    except Exception as error:  # noqa: BLE001 - whatever a parser raises for other people's text
        raise NotRead(f"it is not HCL: {''.join(str(error).splitlines()[:1])[:200]}") from None
    return read


def _release(fields: Mapping[str, Any]) -> Release:
    values, set_values, unread = [], [], []
    for each in _listed(fields.get("values")):
        value = _value(each)
        if value is None:
            unread.append(f"values: {str(each)[:80]}")
        else:
            values.append(value)
    for each in _listed(fields.get("set")):
        name, value = _text(each.get("name")), _text(each.get("value"))
        if name is None or value is None:
            unread.append(f"set: {name or each}"[:80])
        else:
            set_values.append((name, value))
    return Release(
        name=_text(fields.get("name")) or "", chart=_text(fields.get("chart")) or "",
        namespace=_text(fields.get("namespace")) or "",
        values=tuple(values), set_values=tuple(set_values), unread=tuple(unread),
    )  # fmt: skip


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    """Return a literal text, number or switch, with the module's own folder left out of paths; None for an expression."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        value = _MODULE.sub("", value)
        return None if _OPEN in value else value.removeprefix('"').removesuffix('"')
    return str(value) if isinstance(value, int | float) else None


def _value(value: Any) -> Any:
    """Return one item of `values` as a text, a mapping or a file; None where it is an expression."""
    text = _MODULE.sub("", value) if isinstance(value, str) else ""
    if file := _FILE.fullmatch(text):
        return File(path=file[1])
    if encoded := _ENCODED.fullmatch(text):
        try:
            return _plain(_parsed(f"value = {encoded[1]}\n").get("value"))
        except NotRead:
            return None
    if heredoc := _HEREDOC.fullmatch(text):
        return None if _OPEN in heredoc[3] else textwrap.dedent(heredoc[3])
    return _text(value)


def _plain(value: Any) -> Any:
    """Return an encoded value without quotes; None where a part of it is an expression."""
    if isinstance(value, Mapping):
        plain = {str(name).strip('"'): _plain(each) for name, each in value.items() if name != "__is_block__"}
        return None if None in plain.values() else plain
    if isinstance(value, list):
        items = [_plain(each) for each in value]
        return None if None in items else items
    return _text(value) if isinstance(value, str) else value
