"""What a test does about the programs that draw: use them, or skip so that nobody overlooks it.

With KVGATE_REQUIRE_PICTURES=1 (CI) a missing one is a failure and never a skip.
"""

import importlib.util
import os
import shutil

import pytest

from support.assets import say_loudly

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NO_BROWSER = f"no browser: none of {', '.join(BROWSERS)} is on PATH (Debian: apt-get install chromium)"
NO_MATPLOTLIB = "matplotlib is not installed: `make init` installs it"


def require_browser(config: pytest.Config) -> str:
    """The program of a real browser."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    return found or _missing(config, NO_BROWSER)


def require_matplotlib(config: pytest.Config) -> None:
    """The extra `plot`."""
    if importlib.util.find_spec("matplotlib") is None:
        _missing(config, NO_MATPLOTLIB)


def _missing(config: pytest.Config, what: str) -> str:
    if os.environ.get("KVGATE_REQUIRE_PICTURES") == "1":
        pytest.fail(f"KVGATE_REQUIRE_PICTURES=1, but {what}", pytrace=False)
    say_loudly(config, f"NOT TESTED: {what}")
    pytest.skip(what)
