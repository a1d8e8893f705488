"""A fetch against a hub on loopback."""

from kvgate.checkpoint.not_fetched import NotFetched, Reason
from kvgate.checkpoint.published import Published
from kvgate.fetching.fetch import fetch
from kvgate.fetching.hub import Hub
from support.hub_server import COMMIT, TOKEN, LoopbackHub


def test_a_config(server: LoopbackHub, hub: Hub) -> None:
    """The config is read at the commit of the default branch."""
    server.add("o/model", {"config.json": {"architectures": ["Qwen3ForCausalLM"]}})
    model = fetch("o/model", hub=hub)
    assert isinstance(model, Published)
    assert (model.config, model.commit) == ({"architectures": ["Qwen3ForCausalLM"]}, COMMIT)
    assert {request.token for request in server.requests} == {f"Bearer {TOKEN}"}
    missing = fetch("o/none", hub=hub)
    assert isinstance(missing, NotFetched)
    assert missing.reason is Reason.NOT_FOUND
