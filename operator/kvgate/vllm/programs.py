"""Programs that hand words to vLLM's parser: how many words beside options they take, and which options are their own.

Read in vLLM 0.6.6 to 0.33 (`entrypoints/openai/cli_args.py`, `entrypoints/cli/serve.py`, `FlexibleArgumentParser.parse_args`,
`docker/Dockerfile`).
"""

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kvgate.vllm.arguments import Argument
from kvgate.vllm.options import Patch

_TABLE = Path(__file__).parent / "data" / "program_options.csv"


class Kind(Enum):
    """Who reads the words."""

    SERVE = "vllm serve"
    API_SERVER = "vllm.entrypoints.openai.api_server"
    OWN_IMAGE = "the entrypoint of vLLM's own image"
    OTHER = "another program, or one that is not known"


class _Rules(Struct, frozen=True, kw_only=True):
    """The way in which the programs of one release read words."""

    of_the_image: Kind = Kind.API_SERVER
    """Program that the entrypoint of vLLM's own image starts."""
    words_of_module: int = 0
    """Words beside options that the module takes; it refuses any before 0.10."""
    module_ignores_words: bool = False
    refuses_model_option: bool = False
    model_option_is_the_word: bool = False
    """True where `--model` is put into the place of the word."""


_CHANGES: tuple[tuple[Patch, dict[str, object]], ...] = (
    ((0, 8, 5), {"refuses_model_option": True}),
    ((0, 9, 3), {"words_of_module": 1}),
    ((0, 10, 0), {"module_ignores_words": True}),
    ((0, 11, 1), {"of_the_image": Kind.OTHER, "refuses_model_option": False}),
    ((0, 12, 0), {"of_the_image": Kind.SERVE, "model_option_is_the_word": True}),
)
"""Changes of each release. 0.9.2, 0.10.0, 0.11.0 and 0.12.0 were read; a release between two of them may be as either."""


@lru_cache(maxsize=256)
def _rules_of(release: Patch) -> _Rules:
    rules = _Rules()
    for since, changes in _CHANGES:
        if since <= release:
            rules = replace(rules, **changes)
    return rules


class Program(Struct, frozen=True, kw_only=True):
    kind: Kind = Kind.OTHER
    own_options: str = ""
    """Name in the table of the options that it takes for itself; empty where it has none."""
    is_unchanged: bool = False
    """True in vLLM's own image; another project's image may have another command line under the same release."""
    repeated: tuple[Argument, ...] = ()
    """Words that name a program once more, behind an entrypoint that starts one already: they are words of its command line."""

    def as_of(self, release: Patch) -> "Program":
        """Return the program that the entrypoint of vLLM's image starts in a release."""
        return replace(self, kind=_rules_of(release).of_the_image) if self.kind is Kind.OWN_IMAGE else self

    def num_words(self, release: Patch, *, has_model: bool) -> tuple[int, int]:
        """Return how many words beside options are surely taken, and how many may be. `has_model`: `--model` is given too."""
        rules = _rules_of(release)
        if self.kind is Kind.API_SERVER:
            return rules.words_of_module, rules.words_of_module
        if self.kind is Kind.SERVE:
            return (0, 0) if has_model and rules.model_option_is_the_word else (1, 1)
        return (0 if has_model else 1), 1

    def ignores_words(self, release: Patch) -> bool:
        """Return whether the program takes a word beside options and does nothing with it, as the module does."""
        return self.kind is Kind.API_SERVER and _rules_of(release).module_ignores_words

    def refuses_model_option(self, release: Patch) -> bool:
        """Return whether `--model X` ends the start: `vllm serve` takes the model as a word, or `--model=X`."""
        return self.kind is Kind.SERVE and _rules_of(release).refuses_model_option

    def words_of(self, name: str) -> str | None:
        """Return the number of words after an option of the program's own: `0`, `1`, `?`, `*`; None where it has no such option."""
        own = own_options().get(self.own_options, {}) if self.own_options else {}
        known = own.get(name)
        positive = own.get(f"--{name[5:]}") if name.startswith("--no-") else None
        return known if known is not None else "0" if positive == "0" else None


UNKNOWN_PROGRAM = Program()


@lru_cache(maxsize=1)
def own_options() -> Mapping[str, Mapping[str, str]]:
    """Return the options of programs around vLLM: program → option → number of words after it."""
    table: dict[str, dict[str, str]] = {}
    for line in _TABLE.read_text(encoding="utf-8").splitlines():
        if not line.startswith(("#", "program,")):
            program, option, words, _ = line.split(",", 3)
            table.setdefault(program, {})[option] = words
    return table
