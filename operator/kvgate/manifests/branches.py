"""Variables and arrays of a script along its branches: what is set in one holds within it, and is unknown behind it."""

from dataclasses import dataclass, field
from typing import TypeVar

from kvgate.command_line.arguments import Argument
from kvgate.manifests.written import Written

_CLOSED_BY = {"if": "fi", "case": "esac", "for": "done", "while": "done", "until": "done", "select": "done", "{": "}"}
_OTHER_BRANCH = ("else", "elif")
RESERVED = frozenset({*_CLOSED_BY, *_CLOSED_BY.values(), *_OTHER_BRANCH, "then", "do", "!"})
"""Words that stand before a command and are none of it."""
_CHAIN = "the chain's end"
_TESTS = ("[", "[[", "test")
T = TypeVar("T")


@dataclass(slots=True)
class _Branch:
    """What may run, until the word that closes it."""

    closed_by: str
    variables: dict[str, Written | None] = field(default_factory=dict)
    """Of every variable that is set in it, what it was before."""
    lists: dict[str, list[Argument] | None] = field(default_factory=dict)

    @property
    def is_sure(self) -> bool:
        """A group of commands, or a function's body."""
        return self.closed_by == "}"


@dataclass(slots=True)
class Names:
    """What the names of a script hold at a place of it."""

    path: str
    variables: dict[str, Written]
    """By name; the value is None where something outside the input sets it, or a branch that may not run."""
    lists: dict[str, list[Argument]]
    """Arrays by name; the script's own parameters are `@`."""
    branches: list[_Branch] = field(default_factory=list)

    def set(self, name: str, value: Written) -> None:
        """A variable."""
        for branch in self.branches[-1:]:
            branch.variables.setdefault(name, self.variables.get(name))
        self.variables[name] = value

    def set_list(self, name: str, words: list[Argument]) -> None:
        """An array, or the script's parameters."""
        for branch in self.branches[-1:]:
            branch.lists.setdefault(name, self.lists.get(name))
        self.lists[name] = words

    def read(self, word: str) -> None:
        """A reserved word at a command's beginning."""
        if word in _CLOSED_BY:
            self.branches.append(_Branch(closed_by=_CLOSED_BY[word]))
        elif word in _OTHER_BRANCH:
            self.start_over("fi")
        else:
            self._close(word)

    def start_over(self, closed_by: str) -> None:
        """Another branch of the same begins with what was there before all of them."""
        if self.branches and self.branches[-1].closed_by == closed_by:
            _restore(self.variables, self.branches[-1].variables)
            _restore(self.lists, self.branches[-1].lists)

    def chain(self, mark: str, command: list[Argument]) -> None:
        """Behind `||`, and behind a test's `&&`, commands may not run."""
        first = next((word.text for word in command if word.text not in RESERVED), "")
        is_in_chain = bool(self.branches) and self.branches[-1].closed_by == _CHAIN
        if not is_in_chain and (mark == "||" or (mark == "&&" and first in _TESTS)):
            self.branches.append(_Branch(closed_by=_CHAIN))

    def end_chain(self) -> None:
        """At a line's end, and at `;`."""
        if self.branches and self.branches[-1].closed_by == _CHAIN:
            self._leave(self.branches.pop())

    def _close(self, word: str) -> None:
        """With the branches inside that nothing closes."""
        if any(branch.closed_by == word for branch in self.branches):
            while (branch := self.branches.pop()).closed_by != word:
                self._leave(branch)
            self._leave(branch)

    def _leave(self, branch: _Branch) -> None:
        for outer in self.branches[-1:]:
            outer.variables = {**branch.variables, **outer.variables}
            outer.lists = {**branch.lists, **outer.lists}
        if not branch.is_sure:
            self.variables |= {name: Written(value=None, path=self.path) for name in branch.variables}
            self.lists |= {name: [Argument(text=f"${{{name}}}", path=self.path)] for name in branch.lists}


def _restore(now: dict[str, T], before: dict[str, T | None]) -> None:
    for name, value in before.items():
        if value is None:
            now.pop(name, None)
        else:
            now[name] = value
