"""What a test does about the control plane's binaries: use them, or skip so that nobody overlooks it.

With KVGATE_REQUIRE_APISERVER=1 (CI) a missing binary is a failure and never a skip.
"""

import os
from pathlib import Path

import pytest

from controlplane.build import find_assets
from kvgate.documents import programs

MISSING = "the control plane's binaries are missing: `make tools` builds them, once"


def require_assets(config: pytest.Config, *names: str) -> Path:
    """The folder which holds these binaries; every one that `make tools` makes when none is named."""
    folder = find_assets(names)
    if folder:
        return folder
    if os.environ.get("KVGATE_REQUIRE_APISERVER") == "1":
        pytest.fail(f"KVGATE_REQUIRE_APISERVER=1, but {MISSING}", pytrace=False)
    say_loudly(config, f"NOT TESTED: {MISSING}")
    pytest.skip(MISSING)


def require_walls(config: pytest.Config, *walls: str) -> None:
    """Go on where the kernel offers all of these sandboxes; CI requires them."""
    missing = [wall for wall in walls if wall not in programs.walls()]
    if not missing:
        return
    text = f"this system offers no sandbox by {' and '.join(missing)}"
    if os.environ.get("KVGATE_REQUIRE_SANDBOX") == "1":
        pytest.fail(f"KVGATE_REQUIRE_SANDBOX=1, but {text}", pytrace=False)
    say_loudly(config, f"NOT TESTED: {text}")
    pytest.skip(text)


def say_loudly(config: pytest.Config, text: str) -> None:
    """On the terminal itself: pytest hides the reason of a skip and captures what a test prints."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if reporter and capture:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(text, yellow=True, bold=True)
