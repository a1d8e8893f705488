"""Known defects of vLLM's releases that change memory, capacity or starts: the table `data/advisories.csv`, and which rows meet an engine.

A row holds its conditions in words that kvgate has anyway: model class, kind of model, GPU and settings. A condition that is not known
to hold is not met.
"""

import csv
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any

from msgspec import Struct, convert

from kvgate import bundle
from kvgate.budget import parse_patch
from kvgate.text.patterns import pattern

_SETTING = pattern(r"(?P<no>!?)(?P<name>[a-z0-9_]{1,99})(?:(?P<sign>[=>~])(?P<operand>[A-Za-z0-9_.]{1,99}))?")
_OFF = (None, False, "", 0, "0", "false", "False")


class Effect(StrEnum):
    """The thing that a defect changes."""

    STARTS = "starts"
    """It may not start."""
    MEMORY = "memory"
    """It takes other memory than it says, of the GPU or of the host."""
    CAPACITY = "capacity"
    """It holds fewer or more tokens than it could, or says so."""
    SERVING = "serving"
    """It starts, and ends or grows under load."""


class _Condition(Struct, frozen=True, kw_only=True):
    name: str
    sign: str
    operand: str
    is_not: bool

    def holds(self, values: Mapping[str, Any]) -> bool:
        return _SIGNS[self.sign](values.get(self.name), self.operand) is not self.is_not


_SIGNS: Mapping[str, Callable[[object, str], bool]] = {
    "~": lambda value, operand: operand.lower() in str(value).lower(),
    "=": lambda value, operand: operand.lower() == str(value).lower(),
    ">": lambda value, operand: _number(value) > float(operand),
    "": lambda value, _: value not in _OFF,
}


class Advisory(Struct, frozen=True, kw_only=True):
    """One defect, and the engines that it concerns."""

    id: str
    since: str
    until: str
    """The last release that is known to have it; `0.26` is every 0.26.x."""
    fixed: str = ""
    """The first release without it; empty: none is known."""
    classes: str = ""
    kinds: str = ""
    vendor: str = ""
    capability: str = ""
    settings: str = ""
    effect: Effect
    certain: str = ""
    """`yes` where it decides the start of every engine that it concerns."""
    says: str
    remedy: str
    source: str
    day: str

    @property
    def reference(self) -> str:
        """The short name of the source: `#49224`, or `repository#1` beside vLLM's own."""
        *_, owner, repository, _kind, number = self.source.split("/")
        return f"#{number}" if owner == "vllm-project" else f"{repository}#{number}"

    @property
    def releases(self) -> str:
        return self.since if self.since == self.until else f"{self.since} to {self.until}"

    @property
    def decides_start(self) -> bool:
        return self.certain == "yes"

    @property
    def conditions(self) -> tuple[_Condition, ...]:
        return _conditions(self.settings)

    @property
    def setting(self) -> str:
        """The setting that it is most about; empty where it is about none."""
        return next((each.name for each in self.conditions if not each.is_not), "")

    def is_in(self, version: str) -> bool:
        """Return whether a release, `0.25.1`, is one of those that have it."""
        release, until = parse_patch(version), _numbers(self.until)
        return _numbers(self.since) <= release and release[: len(until)] <= until

    def concerns(
        self, architecture: str, kinds: Collection[str], vendor: str, capability: tuple[int, int] | None
    ) -> bool:
        """Return whether it is about such models on such GPUs."""
        stated = ".".join(map(str, capability)) if capability else ""
        return (
            (not self.classes or architecture in self.classes.split())
            and (not self.vendor or vendor == self.vendor)
            and (not self.capability or stated in self.capability.split())
            and all((kind.lstrip("!") in kinds) is not kind.startswith("!") for kind in self.kinds.split())
        )

    def is_met(self, values: Mapping[str, Any]) -> bool:
        """Return whether settings by vLLM's names meet its conditions."""
        return all(condition.holds(values) for condition in self.conditions)


@lru_cache(maxsize=1)
def advisories() -> tuple[Advisory, ...]:
    return tuple(convert(row, Advisory) for row in csv.DictReader(bundle.lines("advisories.csv")))


@lru_cache(maxsize=64)
def advisories_of(version: str) -> tuple[Advisory, ...]:
    """Return the defects of a release. Raise UnknownVersion."""
    return tuple(each for each in advisories() if each.is_in(version))


@lru_cache(maxsize=256)
def _conditions(settings: str) -> tuple[_Condition, ...]:
    conditions = []
    for word in settings.split():
        found = _SETTING.fullmatch(word)
        if found is None:
            raise ValueError(f"{word} is no condition on a setting")
        sign, operand = found["sign"] or "", found["operand"] or ""
        conditions.append(_Condition(name=found["name"], sign=sign, operand=operand, is_not=bool(found["no"])))
    return tuple(conditions)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 0.0
