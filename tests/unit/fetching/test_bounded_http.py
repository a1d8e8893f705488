"""Redirects, and what a server says about time, without any server."""

import pytest

from kvgate.checkpoint.not_fetched import Reason
from kvgate.fetching.bounded_http import host_of, redirected, retry_after
from kvgate.fetching.limits import CouldNotFetch
from support.tables import table


@pytest.mark.parametrize(
    ("url", "location", "target"),
    [
        ("https://hub/a/b", "/api/c", "https://hub/api/c"),
        ("https://hub/a", "https://cdn/x?Signature=1", "https://cdn/x?Signature=1"),
        ("https://hub:8443/a", "https://hub/x", "https://hub/x"),
        ("http://mirror/a", "https://hub/x", "https://hub/x"),
        ("http://mirror:80/a", "http://mirror:9000/x", "http://mirror:9000/x"),
        ("http://mirror/a", "//mirror:9000/x", "http://mirror:9000/x"),
    ],
)
def test_redirects_that_are_followed(url: str, location: str, target: str) -> None:
    """A redirect may lead anywhere over https, and to other ports of a host that was asked without it."""
    assert redirected(url, location) == target


@table(
    ("url", "location"),
    [
        ("https://hub/a", "http://hub/a"),
        ("https://hub/a", "http://169.254.169.254/latest"),
        ("http://mirror/a", "http://other/a"),
        ("https://hub/a", "file:///etc/passwd"),
        ("https://hub/a", "ftp://hub/a"),
        ("https://hub/a", "data:text/plain,x"),
        ("https://hub/a", "javascript:alert(1)"),
        ("https://hub/a", "https://hub:port/x"),
        ("https://hub/a", "http://[::1/x"),
    ],
)
def test_redirects_that_are_refused(url: str, location: str) -> None:
    """No redirect leads to a file, to another scheme, or without https to another host."""
    with pytest.raises(CouldNotFetch, match="leads to") as caught:
        redirected(url, location)
    assert caught.value.reason is Reason.BROKEN


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "120"}, 120),
        ({"retry-after": " 7 "}, 7),
        ({"ratelimit": '"api";r=0;t=55'}, 55),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "9" * 50}, 999999999),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: int | None) -> None:
    """Both headers of the hub are read, and a text that is no number is none."""
    assert retry_after(headers) == seconds


def test_a_host_is_shown_without_its_credentials() -> None:
    """An address of a mirror may have a password in it, which no message shows."""
    assert host_of("https://user:secret@mirror:8443/x") == "mirror:8443"
