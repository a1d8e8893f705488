"""Text in HTML, SVG and XML."""

from html import escape

from kvgate.text.inert import inert


def escaped(text: str) -> str:
    """One line of text, inert and without markup."""
    return escape(inert(text))
