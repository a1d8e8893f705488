"""Fields that a platform does not read: what somebody wrote there never reaches vLLM."""

from collections.abc import Collection, Iterator

from kvgate.documents.written import Written
from kvgate.rules.finding import Severity
from kvgate.vllm.arguments import Located, Place, located


def ignored_fields(field: Written, read: Collection[str], elsewhere: Collection[str], reader: str) -> Iterator[Located]:
    """Every field below that `reader` does not read; a warning where it means something at another place."""
    from difflib import get_close_matches

    for name, child in field.fields():
        if name in read or not child.is_set:
            continue
        near = get_close_matches(name, read, n=1, cutoff=0.8)
        severity = Severity.WARNING if near or name in elsewhere else Severity.INFO
        message = f"{reader} does not read {name} here: it never reaches vLLM"
        remedy = f"did you mean {near[0]}?" if near else "move it to where it is read, or leave it out"
        yield located("FieldIgnored", severity, Place(name=name, path=child.path), message, remedy)
