"""Texts without what looks like a secret: logs, manifests and messages of Kubernetes that kvgate repeats."""

import re

from kvgate.text.patterns import pattern
from kvgate.vllm.variables import looks_secret

_REDACTED = "REDACTED"
_TOKENS = pattern(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[\w-]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{12,}|xox[abp]-[\w-]{10,}|"
    r"AKIA[0-9A-Z]{12,}|nvapi-[\w-]{16,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,})"
)
_NAMED = pattern(
    r"(?P<name>[\"']?(?:--)?(?:[\w-]{0,60}[_-])?(?:api[_-]?keys?|tokens?|passw(?:or)?d|secrets?(?:[_-]access[_-]key)?|access[_-]key(?:[_-]id)?|credentials?)[\"']?)"
    r"(?P<sign>\s{0,3}[:=]\s{0,3}|\s+)(?P<quote>\[?[\"']?)(?P<value>[^\s\"',\]}]{6,})",
    re.IGNORECASE,
)
_AUTHORIZATION = pattern(
    r"((?:Authorization|Proxy-Authorization|Cookie|X-Api-Key)[\"']?\s{0,3}[:=]\s{0,3}[\"']?)(?:(?:Bearer|Basic|Token)\s+)?[^\s\"']{4,}",
    re.IGNORECASE,
)
_BEARER = pattern(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}")
_IN_URL = pattern(r"(\b\w{2,12}://)[^\s/:@]{1,100}:[^\s/@]{1,200}@")
_NAME_LINE = pattern(
    r"(?P<name>[\"']?name[\"']?\s{0,3}:\s{0,3}[\"']?(?P<variable>\w{1,80})[\"']?,?\s{0,80}[\"']?value[\"']?\s{0,3}:\s{0,3})(?P<value>[\"']?[^\s\"',}]+[\"']?)"
)
_NO_SECRETS = ("max", "num", "none", "null", "true", "false", "<set")


def redacted(text: str) -> str:
    """Return a text without what looks like a secret: tokens by their form, and values whose name says what they are."""
    text = _IN_URL.sub(rf"\1{_REDACTED}@", text)
    text = _AUTHORIZATION.sub(rf"\1{_REDACTED}", text)
    text = _BEARER.sub(rf"\1 {_REDACTED}", text)
    text = _TOKENS.sub(_REDACTED, text)
    text = _NAME_LINE.sub(_variable, text)
    return _NAMED.sub(_value, text)


def _variable(match: re.Match[str]) -> str:
    value = match["value"].strip("\"'")
    is_secret = looks_secret(match["variable"], value) and not value.startswith("$")
    return f'{match["name"]}"{_REDACTED}"' if is_secret else match[0]


def _value(match: re.Match[str]) -> str:
    value, name = match["value"], match["name"].strip("\"'").lstrip("-").lower()
    is_word = match["sign"].strip() == "" and not match["name"].startswith("--")
    is_number = value.replace(".", "").replace("_", "").isdigit()
    if (
        is_word
        or is_number
        or value.lower().startswith(_NO_SECRETS)
        or name.startswith(("max", "num", "skip"))
        or value.startswith(("$", "-"))
    ):
        return match[0]
    return f"{match['name']}{match['sign']}{match['quote']}{_REDACTED}"
