"""The page about models that the catalogue does not know: every command runs against a hub on loopback and prints what is shown."""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from kvgate.fetching import fetch as fetching
from kvgate.fetching.hub import Hub
from support.command_line import invoked
from support.hub_server import TOKEN, loopback_hub
from support.published_models import publish_examples

pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "models.md"
BLOCK = re.compile(r"^```console\n\$ kvgate ([^\n]+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_print_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the start to the verdict, in the order of the page; KVGATE_UPDATE_GOLDEN=1 writes the page anew."""
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    monkeypatch.chdir(tmp_path)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    page = PAGE.read_text(encoding="utf-8")
    with loopback_hub() as hub:
        publish_examples(hub)
        monkeypatch.setattr(fetching, "hub_of_environment", lambda: Hub(endpoint=hub.endpoint, token=TOKEN))

        def shown(block: re.Match[str]) -> str:
            result = invoked(*shlex.split(block[1]))
            said = (result.stdout + result.stderr).replace(hub.endpoint.removeprefix("http://"), "huggingface.co")
            return f"```console\n$ kvgate {block[1]}\n{said.rstrip()}\n```"

        happens = BLOCK.sub(shown, page)
        requested = hub.requested()
    if os.environ.get("KVGATE_UPDATE_GOLDEN"):
        PAGE.write_text(happens, encoding="utf-8")
    assert happens == page
    assert len(BLOCK.findall(page)) >= 10
    assert not [path for path in requested if path.endswith((".py", ".md"))]
