"""Problems that vLLM's parser has with a word, as sentences: which option, which release, what to write instead."""

from functools import lru_cache

from kvgate.record import record
from kvgate.vllm.arguments import Argument, shown
from kvgate.vllm.options import Option, Patch, options, spellings


@record
class ArgumentProblem:
    """A problem that the parser has with a word; `rule` is the finding's."""

    rule: str
    at: Argument
    message: str
    remediation: str

    @property
    def path(self) -> str:
        return self.at.path


def canonical(name: str) -> str:
    """vLLM's parser takes `_` for `-` in names of options."""
    return name.replace("_", "-") if name.startswith("--") else name


def unknown(word: Argument, name: str, several: Option | tuple[str, ...] | None, release: Patch) -> ArgumentProblem:
    """No option, a beginning of several, or one of another release."""
    known = options().get(canonical(name))
    if isinstance(several, tuple):
        remedy = f"write it out: {', '.join(several)}"
        return ArgumentProblem(
            rule="OptionAmbiguous", at=word, message=f"{name} begins several options", remediation=remedy
        )
    if known is not None:
        return _not_in_release(word, known, release)
    message = f"{shown(name)} is no option of vLLM; it does not start"
    return ArgumentProblem(rule="OptionUnknown", at=word, message=message, remediation=_meant(canonical(name), release))


def _meant(name: str, release: Patch) -> str:
    """The nearest option, or the one that stands in one word with its value."""
    option, space, _ = name.partition(" ")
    if space and option in spellings(release):
        return f"did you mean {option}, and the rest as words of their own?"
    near = _nearest(name, release)
    return f"did you mean {near}?" if near else "see `vllm serve --help=all` of your release"


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


def _not_in_release(word: Argument, option: Option, release: Patch) -> ArgumentProblem:
    """Removed, or not there yet."""
    version = ".".join(map(str, release))
    if option.removed_in and release >= option.removed_in:
        last = ".".join(map(str, option.until or option.since))
        remedy = f"use {option.replacement}" if option.replacement.startswith("-") else "leave it out"
        message = f"{option.flag} is gone since {'.'.join(map(str, option.removed_in))} (last in {last}); vLLM {version} does not start"
        return ArgumentProblem(rule="OptionRemoved", at=word, message=message, remediation=remedy)
    since = ".".join(map(str, option.since))
    message = f"{option.flag} came with {since}; vLLM {version} does not start with it"
    return ArgumentProblem(
        rule="OptionNotYet", at=word, message=message, remediation=f"use vLLM {since} or newer, or leave it out"
    )


def deprecated(word: Argument, option: Option) -> ArgumentProblem:
    """It still works."""
    remedy = f"use {option.replacement}" if option.replacement.startswith("-") else "leave it out"
    message = f"{option.flag} is deprecated and will be removed"
    return ArgumentProblem(rule="OptionDeprecated", at=word, message=message, remediation=remedy)


def unexpected(word: Argument) -> ArgumentProblem:
    """vLLM takes one word without an option, its model."""
    what = shown(word.text) or "an empty word"
    message = f"{what} belongs to no option; vLLM does not start"
    is_off = word.text.lower() == "false"
    remedy = "leave it out, and its switch with it, or write --no-… for the switch" if is_off else "leave it out"
    return ArgumentProblem(
        rule="UnexpectedWord", at=word, message=message, remediation=f"switches take no value; {remedy}"
    )


def surplus(word: Argument, option: Option, attached: str) -> ArgumentProblem:
    """`--enforce-eager=true`, `--no-enable-prefix-caching=true`."""
    message = f"{option.flag} takes no value, and {attached!r} is one; vLLM does not start"
    remedy = f"write {shown(word.text.partition('=')[0])} alone, or leave it out"
    return ArgumentProblem(rule="OptionValue", at=word, message=message, remediation=remedy)


def missing(word: Argument, option: Option, needed: str) -> ArgumentProblem:
    """`--max-model-len` at the end; `needed` is what it takes, in words."""
    message = f"{option.flag} has no value; vLLM does not start"
    return ArgumentProblem(rule="OptionValue", at=word, message=message, remediation=f"give it {needed}")


def invalid(word: Argument, option: Option, text: str, reason: str) -> ArgumentProblem:
    """A text that is none of the option's type."""
    message = f"{option.flag} is {shown(text)!r}; vLLM does not start"
    return ArgumentProblem(rule="OptionValue", at=word, message=message, remediation=reason)
