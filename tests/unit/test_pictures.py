"""What tests of pictures do where a browser or matplotlib is missing: skip so that everybody sees it, or fail where they are required."""

import importlib.util
import shutil

import pytest

from support import pictures


@pytest.mark.parametrize(("value", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_program_skips_loudly_unless_it_is_required(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, value: str, outcome: type[BaseException]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(pictures, "say_loudly", lambda config, text: said.append(text))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("KVGATE_REQUIRE_PICTURES", value)
    with pytest.raises(outcome, match="apt-get install chromium"):
        pictures.require_browser(pytestconfig)
    with pytest.raises(outcome, match="matplotlib is not installed"):
        pictures.require_matplotlib(pytestconfig)
    assert len(said) == (0 if value else 2)


def test_the_first_browser_that_is_there_is_taken(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/opt/{name}" if name == "google-chrome" else None)
    assert pictures.require_browser(pytestconfig) == "/opt/google-chrome"
