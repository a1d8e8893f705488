"""Words of a command that docker-compose splits without a shell: github.com/mattn/go-shellwords 1.0.12, as compose-go calls it.

Quotes and backslashes are removed; blanks and line ends part words; `;`, `&`, `|`, `<` and `>` end the command, and what follows is lost.
Variables, backticks, `#` and wildcards mean nothing. A backslash takes the next character as it is, also a line's end, which becomes a
word of its own.
"""

import re

from kvgate.text.patterns import pattern

_TOKEN = pattern(
    r"""
    (?P<blank>[ \t\r\n]+)
  | \\(?P<escaped>.)
  | '(?P<single>[^']*)'
  | "(?P<double>(?:[^"\\]|\\.)*)"
  | (?P<whole>`[^`]*`|\$\([^()]*\)|\$\{[^}]*\}?)
  | (?P<end>[;&|<>])
  | (?P<plain>[^ \t\r\n\\'"`();&|<>$]+|\$)
  | (?P<unclosed>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = pattern(r"\\(.)", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t"}


def compose_words(text: str) -> list[str] | None:
    """Return the words; None where compose refuses the text, because a quote or a bracket is not closed."""
    words: list[str] = []
    word: str | None = None
    for match in _TOKEN.finditer(text):
        if match["unclosed"]:
            return None
        if match["end"]:
            if match["end"] == ">" and word and word[0].isdigit():  # the number of a file
                word = None
            break
        if match["blank"]:
            words += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + _part(match)
    return words if word is None else [*words, word]


def _part(match: re.Match[str]) -> str:
    """Return the text of one token without its quotes and backslashes."""
    if match["double"] is not None:
        return _ESCAPE.sub(lambda escape: _LETTERS.get(escape[1], escape[1]), match["double"])
    if match["escaped"] is not None:
        return _LETTERS.get(match["escaped"], match["escaped"])
    return next(match[kind] for kind in ("single", "whole", "plain") if match[kind] is not None)
