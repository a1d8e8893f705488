"""The hub, the token and the mode as huggingface_hub finds them; each in a process of its own, with a home of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvgate.fetching.hub import Hub
from support.hub_server import TOKEN, LoopbackHub

SHOW = """
import json
from kvgate.fetching.hub import hub_of_environment
hub = hub_of_environment()
print(json.dumps([hub.endpoint, hub.token, hub.is_offline, str(hub.cache)]))
"""


def shown(home: Path, program: str = SHOW, **variables: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "HF_HOME": str(home), **variables}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ["https://huggingface.co", None, False]),
        ({"HF_ENDPOINT": "https://mirror/"}, ["https://mirror", None, False]),
        ({"HF_TOKEN": " hf_x\n"}, ["https://huggingface.co", "hf_x", False]),
        ({"HF_TOKEN": "hf_x", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, ["https://huggingface.co", None, False]),
        ({"HF_HUB_OFFLINE": "1"}, ["https://huggingface.co", None, True]),
    ],
)
def test_variables_count_as_for_huggingface_hub(
    tmp_path: Path, variables: dict[str, str], expected: list[object]
) -> None:
    *found, cache = json.loads(shown(tmp_path, **variables))
    assert (found, cache) == (expected, str(tmp_path / "hub"))


def test_the_token_of_a_login_counts(tmp_path: Path) -> None:
    """`hf auth login` keeps it in a file."""
    (tmp_path / "token").write_text("hf_file\n")
    assert json.loads(shown(tmp_path))[1] == "hf_file"


def test_a_fetch_by_the_environment_alone(tmp_path: Path, server: LoopbackHub) -> None:
    """The whole way, as a user has it; nothing is written into the home."""
    server.add("o/model", {"config.json": {"architectures": ["X"]}}, is_private=True)
    program = "from kvgate.fetching.fetch import fetch; print(type(fetch('o/model')).__name__)"
    assert shown(tmp_path, program, HF_ENDPOINT=server.endpoint, HF_TOKEN=TOKEN).strip() == "Published"
    assert shown(tmp_path, program, HF_ENDPOINT=server.endpoint).strip() == "NotFetched"
    assert list(tmp_path.iterdir()) == []


def test_a_proxy_counts(tmp_path: Path, server: LoopbackHub) -> None:
    """A request for a host that no name server knows goes to the proxy, which answers in its place."""
    program = "from kvgate.fetching.fetch import fetch; print(fetch('o/none').message)"
    said = shown(tmp_path, program, HF_ENDPOINT="http://hub.invalid", HTTP_PROXY=server.endpoint)
    assert server.requests
    assert server.requests[0].headers["host"] == "hub.invalid"
    assert "hub.invalid" in said


def test_starting_kvgate_imports_nothing_of_it(tmp_path: Path) -> None:
    """A run without a fetch pays for none."""
    program = """
import sys
from kvgate.cli.main import main
import kvgate.cli.check.command, kvgate.cli.models.command, kvgate.cli.explain.command
print([name for name in ("huggingface_hub", "httpx2", "kvgate.fetching", "ssl") if name in sys.modules])
"""
    assert shown(tmp_path, program).strip() == "[]"


def test_a_hub_shows_its_host_without_credentials() -> None:
    assert Hub(endpoint="https://user:secret@mirror/hub").host == "mirror"
