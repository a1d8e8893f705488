"""A hub on loopback for each test, and limits that make no test slow."""

from collections.abc import Iterator

import pytest

from kvgate.fetching.hub import Hub
from support.hub_server import TOKEN, LoopbackHub, loopback_hub


@pytest.fixture(autouse=True)
def _installed() -> None:
    """Skip where the extra `hub` is not installed."""
    pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with loopback_hub() as hub:
        yield hub


@pytest.fixture
def hub(server: LoopbackHub) -> Hub:
    """The hub for somebody with a token."""
    return Hub(endpoint=server.endpoint, token=TOKEN)


@pytest.fixture
def stranger(server: LoopbackHub) -> Hub:
    """The hub for somebody without one."""
    return Hub(endpoint=server.endpoint)
