"""Problems that vLLM's parser has with a word, as sentences: which option, which release, what to write instead."""

from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

from kvgate.findings.finding import Remedy, Rule, Severity, any_one, remedy_of
from kvgate.rules.command_line import (
    OPTION_AMBIGUOUS,
    OPTION_DEPRECATED,
    OPTION_NOT_YET,
    OPTION_REMOVED,
    OPTION_UNKNOWN,
    OPTION_VALUE,
    UNEXPECTED_WORD,
)
from kvgate.vllm.arguments import Argument, GivenOption, shown
from kvgate.vllm.options import Option, Patch, options, spellings


class ArgumentProblem(Struct, frozen=True, kw_only=True):
    """A problem that the parser has with a word."""

    rule: Rule
    at: Argument
    message: str
    remedy: Remedy = Remedy()
    meant: str = ""
    """The name of vLLM's that the word probably misspells; empty where none is like it."""
    severity: Severity | None = None
    """None: the rule's usual one."""

    @property
    def path(self) -> str:
        return self.at.path

    @property
    def is_slip(self) -> bool:
        """A misspelling: vLLM has a name much like it."""
        return bool(self.meant)


def canonical(name: str) -> str:
    """vLLM's parser takes `_` for `-` in names of options."""
    return name.replace("_", "-") if name.startswith("--") else name


def unknown(word: Argument, name: str, several: Option | tuple[str, ...] | None, release: Patch) -> ArgumentProblem:
    """No option, a beginning of several, or one of another release."""
    known = options().get(canonical(name))
    if isinstance(several, tuple):
        remedy = remedy_of(f"write it out: {', '.join(several)}")
        return ArgumentProblem(rule=OPTION_AMBIGUOUS, at=word, message=f"{name} begins several options", remedy=remedy)
    if known is not None:
        # the release no longer has the option, or does not have it yet
        version = ".".join(map(str, release))
        if known.removed_in and release >= known.removed_in:
            last = ".".join(map(str, known.until or known.since))
            message = f"{known.flag} is gone since {'.'.join(map(str, known.removed_in))} (last in {last}); vLLM {version} does not start"
            return ArgumentProblem(rule=OPTION_REMOVED, at=word, message=message, remedy=_replacement(known))
        since = ".".join(map(str, known.since))
        message = f"{known.flag} came with {since}; vLLM {version} does not start with it"
        remedy = any_one(f"use vLLM {since} or newer", f"leave {known.flag} out")
        return ArgumentProblem(rule=OPTION_NOT_YET, at=word, message=message, remedy=remedy)
    message = f"{shown(name)} is no option of vLLM; it does not start"
    option, space, _ = canonical(name).partition(" ")
    if space and option in spellings(release):
        remedy = remedy_of(f"did you mean {option}, and the rest as words of their own?")
        return ArgumentProblem(rule=OPTION_UNKNOWN, at=word, message=message, remedy=remedy, meant=option)
    near = _nearest(canonical(name), release)
    remedy = remedy_of(f"did you mean {near}?" if near else "see `vllm serve --help=all` of your release")
    return ArgumentProblem(rule=OPTION_UNKNOWN, at=word, message=message, remedy=remedy, meant=near or "")


@lru_cache(maxsize=256)
def _nearest(name: str, release: Patch) -> str | None:
    """The option that was probably meant."""
    from difflib import get_close_matches

    if len(name) > 60:
        return None
    if not name.startswith("--"):
        short = max((s for s in spellings(release) if name.startswith(s)), key=len, default="")
        return f"{short} {name[len(short) :]}" if short else None
    names = [s for s in spellings(release) if s.startswith("--")]
    return next(iter(get_close_matches(name, names, n=1, cutoff=0.75)), None)


def _replacement(option: Option) -> Remedy:
    return remedy_of(f"use {option.replacement}" if option.replacement.startswith("-") else f"leave {option.flag} out")


def deprecated(word: Argument, option: Option) -> ArgumentProblem:
    """An option that still works, and that a later release will not have."""
    message = f"{option.flag} is deprecated and will be removed"
    return ArgumentProblem(rule=OPTION_DEPRECATED, at=word, message=message, remedy=_replacement(option))


def unexpected(word: Argument, severity: Severity | None = None) -> ArgumentProblem:
    """vLLM takes one word without an option, its model. Some programs take one and ignore it; then it is no more than a warning."""
    what = shown(word.text) or "an empty word"
    remedy = remedy_of("leave it out: switches take no value")
    if word.text.lower() == "false":
        remedy = any_one("leave it out, and its switch with it", "write --no-… for the switch")
    message = f"{what} belongs to no option; vLLM does not start"
    if severity is not None:
        message = f"{message}, unless the image starts its API server's module, which ignores it"
    return ArgumentProblem(rule=UNEXPECTED_WORD, at=word, message=message, remedy=remedy, severity=severity)


def ignored(word: Argument, model: GivenOption | None) -> ArgumentProblem:
    """The API server's module takes one word and never reads it. Without `--model` it serves its default model."""
    what = shown(word.text) or "an empty word"
    message = f"{what} belongs to no option; the API server's module ignores it"
    remedy = remedy_of("leave it out: switches take no value")
    if word.text.startswith("-"):
        remedy = remedy_of("write the option and its value as words of their own")
    elif model is None:
        message, remedy = f"{message}, and serves its default model", remedy_of(f"write --model {what}")
    return ArgumentProblem(rule=UNEXPECTED_WORD, at=word, message=message, remedy=remedy, severity=Severity.WARNING)


def repeated_program(words: Sequence[Argument]) -> ArgumentProblem:
    """`args: [serve, MODEL]` on an image whose entrypoint is `vllm serve` already."""
    what = shown(" ".join(word.text for word in words))
    message = (
        f"the image's entrypoint starts the server already, and {what!r} becomes an argument of it; vLLM does not start"
    )
    remedy = any_one(f"leave {what!r} out", "give the program as the container's command")
    return ArgumentProblem(rule=UNEXPECTED_WORD, at=words[0], message=message, remedy=remedy)


def model_option(word: Argument, model: GivenOption | None, severity: Severity | None) -> ArgumentProblem:
    """`vllm serve --model X`, which some releases end with an error."""
    message = "`vllm serve` of this release refuses --model; it does not start"
    name = shown(model.text) if model else "the model"
    remedy = remedy_of(f"write {name} as the first word, without --model")
    return ArgumentProblem(
        rule=OPTION_UNKNOWN, at=word, message=message, remedy=remedy, meant="--model", severity=severity
    )


def surplus(word: Argument, option: Option, attached: str) -> ArgumentProblem:
    """`--enforce-eager=true`, `--no-enable-prefix-caching=true`."""
    message = f"{option.flag} takes no value, and {attached!r} is one; vLLM does not start"
    remedy = any_one(f"write {shown(word.text.partition('=')[0])} alone", "leave it out")
    return ArgumentProblem(rule=OPTION_VALUE, at=word, message=message, remedy=remedy)


def missing(word: Argument, option: Option, needed: str) -> ArgumentProblem:
    """`--max-model-len` at the end; `needed` is what it takes, in words."""
    message = f"{option.flag} has no value; vLLM does not start"
    return ArgumentProblem(rule=OPTION_VALUE, at=word, message=message, remedy=remedy_of(f"give it {needed}"))


def invalid(word: Argument, option: Option, text: str, reason: str) -> ArgumentProblem:
    """A text that is none of the option's type."""
    message = f"{option.flag} is {shown(text)!r}; vLLM does not start"
    return ArgumentProblem(rule=OPTION_VALUE, at=word, message=message, remedy=remedy_of(reason))
