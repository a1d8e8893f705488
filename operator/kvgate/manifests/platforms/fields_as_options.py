"""A platform's own fields as the options that the platform makes of them: `maxModelLen: 4096` → `--max-model-len=4096`."""

import json
from collections.abc import Iterator, Mapping

from kvgate.documents.written import Written
from kvgate.vllm.arguments import Argument
from kvgate.vllm.options import options


def as_options(fields: Written, flags: Mapping[str, str]) -> Iterator[Argument]:
    """One argument for every field that is written and has an option."""
    for name, flag in flags.items():
        yield from as_option(fields.get(*name.split(".")), flag)


def as_option(field: Written, flag: str) -> Iterator[Argument]:
    """A switch alone (`--no-…` where it is off), anything else with its value; nothing where nothing is written, as in `[]`."""
    if isinstance(field.value, bool):
        if field.value or _is_negatable(flag):
            yield Argument(text=flag if field.value else f"--no-{flag[2:]}", path=field.path)
    elif isinstance(field.value, Mapping) or any(isinstance(item.value, Mapping | list) for item in field.items()):
        yield Argument(text=f"{flag}={json.dumps(field.value, default=str)}", path=field.path)
    elif isinstance(field.value, list) and field.value:
        yield Argument(text=flag, path=field.path)
        yield from (Argument(text=item.text, path=item.path) for item in field.items())
    elif field.text:
        yield Argument(text=f"{flag}={field.text}", path=field.path)


def _is_negatable(flag: str) -> bool:
    """A switch that is off needs no word where there is none."""
    option = options().get(flag)
    return option is not None and any(value for _, value in option.negatable)


def any_options(fields: Written) -> Iterator[Argument]:
    """Every field by vLLM's own name, with `_` or `-`."""
    for name, field in fields.fields():
        yield from as_option(field, f"--{name.replace('_', '-')}")


def words_of(field: Written) -> list[Argument]:
    """A list of words as it stands."""
    return [Argument(text=item.text, path=item.path) for item in field.items()]
