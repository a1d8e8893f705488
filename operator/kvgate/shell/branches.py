"""Variables and arrays of a script along its branches: a value that one branch sets holds within it; behind them the shared part."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Generic, TypeVar

from msgspec import Struct, field

from kvgate.documents.written import Written
from kvgate.vllm.arguments import Argument

_CLOSED_BY = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done", "select": "done", "{": "}"}
_OTHER_BRANCH = ("else", "elif")
RESERVED = frozenset({*_CLOSED_BY, *_CLOSED_BY.values(), *_OTHER_BRANCH, "then", "do", "!"})
"""Words that stand before a command and are no part of it."""
_CHAIN = "the chain's end"
_MAX_DEPTH = 50
"""Branches within branches; a deeper one is read as a part of the last."""
T = TypeVar("T")
_Shared = Callable[[str, Sequence[T | None], str], T]
"""(name, what it may hold, path) → what is certain of it."""


class _Changed(Struct, Generic[T]):
    """Names of one kind that are set in a branch, or in another branch of the same."""

    now: dict[str, T]
    before: dict[str, T | None] = field(default_factory=dict)
    """None: it was not set."""
    ends: dict[str, list[T | None]] = field(default_factory=dict)
    """Values at the end of the branches that set the name, as far as they came to their end."""
    num_ended: int = 0
    here: set[str] = field(default_factory=set)
    """Set in the branch that has not ended."""

    def note(self, name: str, before: T | None) -> None:
        self.before.setdefault(name, before)
        self.here.add(name)

    def start_over(self) -> None:
        self.num_ended += 1
        for name in self.here:
            self.ends.setdefault(name, []).append(self.now.get(name))
            value = self.before[name]
            if value is None:
                self.now.pop(name, None)
            else:
                self.now[name] = value
        self.here.clear()

    def note_in(self, outer: "_Changed[T]") -> None:
        for name, value in self.before.items():
            outer.note(name, value)

    def join(self, shared: _Shared[T], path: str, *, is_one_run: bool) -> None:
        """Set each name behind all branches to what they share. `is_one_run`: one of them runs for certain."""
        for name in self.before:
            ends = self.ends.get(name, [])
            is_set_by_all = is_one_run and name in self.here and len(ends) == self.num_ended
            outcomes = [*([] if is_set_by_all else [self.before[name]]), *ends, self.now.get(name)]
            self.now[name] = shared(name, outcomes, path)


class _Branch(Struct):
    """Commands that may run, until the word that closes the branch."""

    closed_by: str
    variables: _Changed[Written]
    arrays: _Changed[list[Argument]]
    has_else: bool = False
    is_skipped: bool = False
    """A loop over the script's own arguments, of which it gets none."""

    @property
    def is_sure(self) -> bool:
        """A group of commands, or a function's body."""
        return self.closed_by == "}"


class Names(Struct):
    """Values that the names of a script hold at one place in it."""

    path: str
    variables: dict[str, Written]
    """Variables by name; the value is None where something outside the input sets it, or a branch that may not run."""
    arrays: dict[str, list[Argument]]
    """Arrays by name; the script's own parameters are `@`."""
    branches: list[_Branch] = field(default_factory=list)

    def set(self, name: str, value: Written) -> None:
        for branch in self.branches[-1:]:
            branch.variables.note(name, self.variables.get(name))
        self.variables[name] = value

    def set_array(self, name: str, words: list[Argument]) -> None:
        for branch in self.branches[-1:]:
            branch.arrays.note(name, self.arrays.get(name))
        self.arrays[name] = words

    def read(self, word: str) -> None:
        """Open, change or close a branch at a reserved word that begins a command."""
        if word in _CLOSED_BY:
            self._open(_CLOSED_BY[word])
        elif word in _OTHER_BRANCH:
            self.start_over("fi", is_last=word == "else")
        elif any(branch.closed_by == word for branch in self.branches):
            while (branch := self.branches.pop()).closed_by != word:  # those inside it that nothing closes
                self._leave(branch)
            self._leave(branch)

    def start_over(self, closed_by: str, *, is_last: bool = False) -> None:
        """Begin another branch of the same statement, with the values from before all of them."""
        for branch in self.branches[-1:]:
            if branch.closed_by == closed_by:
                branch.has_else = is_last
                branch.variables.start_over()
                branch.arrays.start_over()

    def chain(self, mark: str, command: list[Argument]) -> None:
        """Open a branch behind `||`, and behind a test's `&&`: commands there may not run."""
        first = next((word.text for word in command if word.text not in RESERVED), "")
        if not self._is_in_chain and (mark == "||" or first in ("[", "[[", "test")):
            self._open(_CHAIN)

    def end_chain(self) -> None:
        """Close such a branch at a line's end, and at `;`."""
        if self._is_in_chain:
            self._leave(self.branches.pop())

    @property
    def _is_in_chain(self) -> bool:
        return bool(self.branches) and self.branches[-1].closed_by == _CHAIN

    def _open(self, closed_by: str) -> None:
        if len(self.branches) == _MAX_DEPTH:
            return
        variables, arrays = _Changed(now=self.variables), _Changed(now=self.arrays)
        self.branches.append(_Branch(closed_by=closed_by, variables=variables, arrays=arrays))

    def skip_loop(self, condition: list[Argument]) -> None:
        """Leave out the loop that has just begun if it goes through the script's arguments, and nobody gives it any."""
        words = [word.text for word in condition]
        is_of_arguments = words[:1] == ["while"] and ("getopts" in words or any("$#" in word for word in words))
        if is_of_arguments and self.branches and not self.arrays.get("@"):
            self.branches[-1].is_skipped = True

    def _leave(self, branch: _Branch) -> None:
        if branch.is_skipped:  # what has a value before keeps it; an argument that has none must be given
            for name, value in branch.variables.before.items():
                self.variables[name] = value if value and value.text else Written(value=None, path=self.path)
            self.arrays |= {name: words or [] for name, words in branch.arrays.before.items()}
            return
        for outer in self.branches[-1:]:
            branch.variables.note_in(outer.variables)
            branch.arrays.note_in(outer.arrays)
        if not branch.is_sure:
            branch.variables.join(_shared_value, self.path, is_one_run=branch.has_else)
            branch.arrays.join(_shared_words, self.path, is_one_run=branch.has_else)


def _shared_value(name: str, outcomes: Sequence[Written | None], path: str) -> Written:
    """Return the words that all outcomes begin with, then the name for the rest, which is open; unknown where they share no word."""
    known = [outcome for outcome in outcomes if outcome is not None]
    texts = {"" if outcome is None else outcome.text for outcome in outcomes}
    if any(outcome.value is None for outcome in known):
        return Written(value=None, path=path)
    if len(texts) == 1:
        return known[0]
    words, rest = _beginning([text.split() for text in texts], str), f"${{{name}}}"
    return Written(value=" ".join([*words, *([] if rest in words else [rest])]) if words else None, path=path)


def _shared_words(name: str, outcomes: Sequence[list[Argument] | None], path: str) -> list[Argument]:
    lists = [outcome or [] for outcome in outcomes]
    words = _beginning(lists, lambda word: word.text)
    is_all = all(len(each) == len(words) for each in lists)
    return words if is_all else [*words, Argument(text=f"${{{name}}}", path=path)]


def _beginning(lists: Sequence[list[T]], text_of: Callable[[T], str]) -> list[T]:
    same = takewhile(lambda words: len(set(map(text_of, words))) == 1, zip(*lists, strict=False))
    return [words[0] for words in same]
