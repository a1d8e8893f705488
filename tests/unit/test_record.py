"""A record does what a dataclass with the same flags does, but for the time that the class takes to make."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any

import pytest

from kvgate.record import record

Decorator = Callable[[type], type]
STANDARD = dataclass(frozen=True, kw_only=True, slots=True)


def both(body: Callable[[Decorator], type]) -> pytest.MarkDecorator:
    """The same class by the standard library and as a record."""
    return pytest.mark.parametrize("ship", [body(STANDARD), body(record)], ids=["dataclass", "record"])


def ships(decorator: Decorator) -> type:
    @decorator
    class Ship:
        """Has every kind of field."""

        name: str
        masts: int = 3
        holds: list[str] = field(default_factory=list)
        log: str = field(default="", compare=False, repr=False)
        weight: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "weight", self.masts * 10)

        @property
        def loud(self) -> str:
            return self.name.upper()

    return Ship


def points(decorator: Decorator) -> type:
    @decorator
    class Point:
        x: int
        y: int = 0

    return Point


def empties(decorator: Decorator) -> type:
    @decorator
    class Empty:
        pass

    return Empty


def named(decorator: Decorator) -> type:
    @decorator
    class Named:
        name: str

        def __repr__(self) -> str:
            return self.name

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    return Named


def families(decorator: Decorator) -> type:
    @decorator
    class Parent:
        name: str

    @decorator
    class Child(Parent):
        age: int = 1

    return Child


@both(ships)
def test_fields_are_set_by_keyword_from_defaults_factories_and_afterwards(ship: Any) -> None:
    one, other = ship(name="Argo"), ship(name="Argo", masts=1, holds=["aft"])
    assert (one.masts, one.holds, one.log, one.weight, one.loud) == (3, [], "", 30, "ARGO")
    assert (other.masts, other.holds, other.weight) == (1, ["aft"], 10)
    assert ship(name="Argo").holds is not one.holds
    assert [each.name for each in fields(ship)] == ["name", "masts", "holds", "log", "weight"]


@both(ships)
def test_what_it_shows_and_compares_is_what_its_fields_say(ship: Any) -> None:
    one = ship(name="Argo", log="calm")
    assert repr(one).endswith(".Ship(name='Argo', masts=3, holds=[], weight=30)")
    assert one == ship(name="Argo", log="storm") != ship(name="Argo", masts=1)
    assert one != "Argo"
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


@both(ships)
def test_copies_pickles_and_dictionaries(ship: Any) -> None:
    one = ship(name="Argo", masts=2, holds=["aft"])
    assert copy.copy(one) == copy.deepcopy(one) == one
    assert replace(one, name="Beagle") == ship(name="Beagle", masts=2, holds=["aft"])
    assert asdict(one) == {"name": "Argo", "masts": 2, "holds": ["aft"], "log": "", "weight": 20}
    state = one.__reduce_ex__(pickle.HIGHEST_PROTOCOL)[2]
    assert state == ["Argo", 2, ["aft"], "", 20]


@both(ships)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"Ship\.__init__\(\) missing 1 required keyword-only argument: 'name'"),
        ({"name": "Argo", "sails": 1}, r"Ship\.__init__\(\) got an unexpected keyword argument 'sails'"),
        ({"name": "Argo", "weight": 1}, "unexpected keyword argument 'weight'"),
    ],
)
def test_wrong_arguments_are_named(ship: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ship(**arguments)


@both(points)
def test_it_is_frozen_hashable_and_has_no_dictionary(ship: Any) -> None:
    point = ship(x=1)
    assert {point: "here"}[ship(x=1, y=0)] == "here"
    for attempt in (lambda: setattr(point, "x", 2), lambda: setattr(point, "z", 2), lambda: delattr(point, "x")):
        with pytest.raises((FrozenInstanceError, TypeError)):
            attempt()
    assert point.x == 1
    assert not hasattr(point, "__dict__")
    with pytest.raises(TypeError, match="positional"):
        ship(1)


@both(empties)
def test_without_fields_all_are_equal(ship: Any) -> None:
    assert ship() == ship()
    assert hash(ship()) == hash(ship())
    assert repr(ship()).endswith("Empty()")


@both(named)
def test_methods_of_its_own_stay(ship: Any) -> None:
    assert (repr(ship(name="Argo")), ship(name="Argo") == 5, hash(ship(name="Argo"))) == ("Argo", True, 7)


@both(families)
def test_a_record_may_extend_another(ship: Any) -> None:
    assert repr(ship(name="Argo", age=2)).endswith("Child(name='Argo', age=2)")
    assert ship(name="Argo") == ship(name="Argo", age=1) != ship.__base__(name="Argo")
