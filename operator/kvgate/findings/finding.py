"""A rule, a finding of it about one setting, the remedy and the place; settings in their words are named as each door names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from string import Formatter
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

Naming = Callable[[str], str]
"""vLLM's name of a setting (`max_num_seqs`) → the name that a door's reader writes (`spec.vllm.maxNumSeqs`, `--max-num-seqs`)."""


def vllm_name(setting: str) -> str:
    """The naming of a door whose reader writes vLLM's own names."""
    return setting


class Severity(StrEnum):
    """Severity of a finding; a missing fact is never an error."""

    ERROR = "error"
    """The engine does not start, or does not hold what is guaranteed."""
    WARNING = "warning"
    """The engine may not start, or nothing can be decided."""
    INFO = "info"
    """A fact that is worth knowing; nothing is wrong."""


class Scope(StrEnum):
    """Subject of a rule, under which the reference lists it."""

    MEMORY = "memory"
    SETTINGS = "settings"
    FACTS = "facts"
    COMMAND_LINE = "command line"
    MANIFESTS = "manifests"
    FILES = "files"
    OWN_WORDS = "kvgate's own words"
    REQUIREMENTS = "requirements of a repository"
    TIME_LIMITS = "time limits of the webhook and the controller"


class Rule(Struct, frozen=True, kw_only=True, eq=False):
    """One rule; all of them stand in `rules`. Its example is in `cli/data/rule_examples.yaml`."""

    id: str
    """The name that people see and ignore it by; it never changes."""
    severities: tuple[Severity, ...]
    """The usual one first."""
    scope: Scope
    title: str
    """One sentence: the fact that the rule finds."""
    explanation: str = ""
    """The consequence, and when another severity than the usual one is given."""

    def __str__(self) -> str:
        return self.id

    @property
    def words(self) -> str:
        return f"{self.title} {self.explanation}".rstrip()

    def finding(
        self,
        field: str,
        message: str | Words,
        remedy: str | Action | Remedy | None = None,
        *,
        severity: Severity | None = None,
    ) -> Finding:
        """A finding of this rule, of its usual severity where none is given."""
        return Finding(
            rule=self,
            severity=severity or self.severities[0],
            field=field,
            words=words("{message}", message=message),
            remedy=remedy_of(remedy),
        )

    def _identity(self) -> object:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and self._identity() == other._identity()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._identity())


class SettingName(str):
    """vLLM's name of a setting, among the values of a sentence: it is worded as the door names it."""

    __slots__ = ()


_FORMATTER = Formatter()


class Words(Struct, frozen=True, kw_only=True):
    """A sentence whose settings are named by whoever shows it: `{max_model_len} {limit} is too long` with the value of `limit`."""

    template: str
    """Text of ours, never a user's; a name in braces that has no value is a setting's."""
    values: tuple[tuple[str, str | Words], ...] = ()

    def worded(self, naming: Naming) -> str:
        """Return the text, with every setting under its name."""
        return self.template.format_map(_Values(self.values, naming))

    def value_of(self, name: str) -> str:
        """Return a value by its name, also that of a sentence among the values; empty where there is none."""
        own = dict(self.values).get(name, "")
        if isinstance(own, str) and own:
            return own
        return next(
            (found for _, each in self.values if isinstance(each, Words) and (found := each.value_of(name))), ""
        )

    def settings(self) -> frozenset[str]:
        """Return vLLM's names of the settings in the sentence."""
        given = dict(self.values)
        of_template = {name for _, name, _, _ in _FORMATTER.parse(self.template) if name} - given.keys()
        of_values = {str(value) for value in given.values() if isinstance(value, SettingName)}
        of_sentences = [value.settings() for value in given.values() if isinstance(value, Words)]
        return frozenset(of_template | of_values).union(*of_sentences)

    def doubted(self) -> Words:
        """Return the sentence about a start that is not certain to fail, where it says that it fails."""
        values = (
            (name, value.doubted() if isinstance(value, Words) else _doubted(value)) for name, value in self.values
        )
        return replace(self, template=_doubted(self.template), values=tuple(values))


def _doubted(text: str) -> str:
    if isinstance(text, SettingName):
        return text
    return text.replace("does not start", "may not start").replace(" refuses ", " may refuse ")


class _Values(dict[str, str]):
    """The values of a sentence; every other name is a setting."""

    def __init__(self, values: Iterable[tuple[str, str | Words]], naming: Naming) -> None:
        super().__init__()
        self._naming = naming
        for name, value in values:
            if isinstance(value, Words):
                self[name] = value.worded(naming)
            else:
                self[name] = naming(value) if isinstance(value, SettingName) else value

    def __missing__(self, setting: str) -> str:
        return self._naming(setting)


def words(template: str, **values: object) -> Words:
    """A sentence with its values; a sentence among them is worded with the same names."""
    if template == "{message}" and isinstance(values["message"], Words):
        return values["message"]
    return Words(
        template=template,
        values=tuple((name, value if isinstance(value, str | Words) else str(value)) for name, value in values.items()),
    )


class Change(StrEnum):
    """Kind of an action on a setting."""

    SET = "set"
    AT_MOST = "at most"
    AT_LEAST = "at least"
    LOWER = "lower"
    RAISE = "raise"
    LEAVE_OUT = "leave out"
    ADD = "add"


class Action(Struct, frozen=True, kw_only=True):
    """One thing that a person can do: a change of one setting, or another action in words."""

    change: Change | None = None
    setting: str = ""
    before: str = ""
    """Value that counts now, where it helps to see it."""
    after: str = ""
    reason: str = ""
    """Why it helps, as a clause; empty where the message explains it."""
    otherwise: Words | None = None
    """The action in words, where it is no change of one setting."""

    def worded(self, naming: Naming) -> str:
        """Return one line, with the setting under its name."""
        if self.otherwise is not None:
            return self.otherwise.worded(naming)
        name, now = naming(self.setting), f" from {self.before}" if self.before else ""
        bounds = {
            Change.AT_MOST: ("lower" if now else "set", " or less"),
            Change.AT_LEAST: ("raise" if now else "set", " or more"),
        }
        if self.change in bounds:
            verb, bound = bounds[self.change]
            text = f"{verb} {name}{now} to {self.after}{bound}"
        elif self.change is Change.SET:
            text = f"{'change' if now else 'set'} {name}{now} to {self.after}"
        elif self.change is Change.LEAVE_OUT:
            text = f"leave {name} out"
        else:
            text = f"{self.change} {name}{now}{f' to {self.after}' if self.after else ''}"
        return f"{text}: {self.reason}" if self.reason else text


class Remedy(Struct, frozen=True, kw_only=True):
    """Actions of which any one helps, or steps that are taken one after the other."""

    actions: tuple[Action, ...] = ()
    are_steps: bool = False

    def lines(self, naming: Naming) -> list[str]:
        """Return one action per line. Alternatives have a line before them, and steps have numbers."""
        lines = [action.worded(naming) for action in self.actions]
        if len(lines) < 2:
            return lines
        if self.are_steps:
            return [f"{number}. {line}" for number, line in enumerate(lines, start=1)]
        return ["any one of:", *(f"- {line}" for line in lines)]

    def worded(self, naming: Naming) -> str:
        """Return the actions on one line."""
        lines = [action.worded(naming) for action in self.actions]
        if self.are_steps:
            return "; then ".join(lines)
        return f"any one of: {'; '.join(lines)}" if len(lines) > 1 else "".join(lines)


def do(template: str, **values: object) -> Action:
    """An action in words, which is no change of one setting."""
    return Action(otherwise=words(template, **values))


def change(kind: Change, setting: str, after: object = "", *, before: object = "", reason: str = "") -> Action:
    """A change of one setting; `before` and `after` are its values."""
    return Action(change=kind, setting=setting, before=str(before), after=str(after), reason=reason)


def at_most(setting: str, value: object, *, before: object = "") -> Action:
    return change(Change.AT_MOST, setting, value, before=before)


def at_least(setting: str, value: object, *, before: object = "") -> Action:
    return change(Change.AT_LEAST, setting, value, before=before)


def leave_out(setting: str) -> Action:
    return change(Change.LEAVE_OUT, setting)


def any_one(*actions: str | Action | Remedy) -> Remedy:
    """Alternatives, the least costly first; those of a remedy among them are taken in."""
    return Remedy(actions=tuple(action for each in actions for action in remedy_of(each).actions))


def steps(*actions: str | Action) -> Remedy:
    return Remedy(actions=tuple(action for each in actions for action in remedy_of(each).actions), are_steps=True)


def remedy_of(given: str | Action | Remedy | None) -> Remedy:
    """A remedy of one action, of one in words, or none."""
    if isinstance(given, Remedy):
        return given
    if isinstance(given, Action):
        return Remedy(actions=(given,))
    return Remedy(actions=(do("{text}", text=given),)) if given else Remedy()


class Finding(Struct, frozen=True, kw_only=True, eq=False):
    """One sentence with numbers, and a remedy. It is data until `message` and `remediation` word it in the door's names."""

    rule: Rule
    severity: Severity
    field: str
    """vLLM's name of the setting (`max_model_len`), or a path into the document where the schema speaks."""
    words: Words
    remedy: Remedy = Remedy()
    topic: str = ""
    """Name that tells findings of one rule about one field apart; empty where there is only one."""
    naming: Naming = vllm_name
    """The names of the door that shows it."""

    @property
    def message(self) -> str:
        return self.words.worded(self.naming)

    @property
    def remediation(self) -> str:
        """The remedy on one line; empty where there is none."""
        return self.remedy.worded(self.naming)

    @property
    def remedy_lines(self) -> list[str]:
        return self.remedy.lines(self.naming)

    @property
    def names_its_field(self) -> bool:
        """True where the sentence itself names the setting that it is about, so that no path is needed before it."""
        return self.field in self.words.settings()

    def named(self, naming: Naming) -> Finding:
        return replace(self, naming=naming)

    def softened(self) -> Finding:
        """A warning instead of an error: something that is not seen here may put it right."""
        return replace(self, severity=Severity.WARNING) if self.severity is Severity.ERROR else self

    def noted(self) -> Finding:
        """An info instead of a warning: the verdict says it, or nothing is wrong."""
        return replace(self, severity=Severity.INFO) if self.severity is Severity.WARNING else self

    def doubted(self) -> Finding:
        """A warning beside a verdict that says that it starts: it does not say that it does not."""
        return replace(self, words=self.words.doubted()) if self.severity is not Severity.ERROR else self

    def with_words(self, template: str, **values: object) -> Finding:
        """The same with another sentence; `{message}` in it is the one that it has."""
        return replace(self, words=words(template, message=self.words, **values))

    def _identity(self) -> object:
        return (self.rule, self.severity, self.field, self.words, self.remedy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Finding) and self._identity() == other._identity()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._identity())


def named(findings: Iterable[Finding], naming: Naming) -> Iterator[Finding]:
    return (finding.named(naming) for finding in findings)


def error_rules(findings: Iterable[Finding]) -> frozenset[Rule]:
    """The rules behind the errors; empty where there are none."""
    return frozenset(finding.rule for finding in findings if finding.severity is Severity.ERROR)


class HasPlace(Protocol):
    """A setting that is written somewhere: its name in vLLM, the path of the field, and lines below the first of its text."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def line(self) -> int: ...


class Place(Struct, frozen=True, kw_only=True):
    """The subject of a finding, and where it is written."""

    name: str
    path: str
    line: int = 0


class Located(Struct, frozen=True, kw_only=True):
    finding: Finding
    path: str
    line: int = 0
    """Lines below the first one, where the field is a text of several."""

    def softened(self) -> Located:
        """A warning instead of an error: something that is not seen here may put it right."""
        return replace(self, finding=self.finding.softened())

    def named(self, naming: Naming) -> Located:
        return replace(self, finding=self.finding.named(naming))


def located(
    rule: Rule,
    at: HasPlace,
    message: str | Words,
    remedy: str | Action | Remedy | None = None,
    *,
    severity: Severity | None = None,
) -> Located:
    """Make a finding at an option, or at any other place, with the rule's usual severity where none is given."""
    return Located(finding=rule.finding(at.name, message, remedy, severity=severity), path=at.path, line=at.line)
