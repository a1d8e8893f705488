"""`helm kvgate`: what its script does before Helm renders anything."""

import pytest

import helm_kvgate


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_renders_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    monkeypatch.setenv("HELM_BIN", "/no/such/helm")
    assert helm_kvgate.main([flag]) == 0
    assert capsys.readouterr().out == f"{helm_kvgate.USAGE}\n"


def test_a_plugin_without_a_chart_or_without_kvgate_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "kvgate")
    assert helm_kvgate.main([]) == 2
    assert helm_kvgate.USAGE in capsys.readouterr().err
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert helm_kvgate.main(["chart"]) == 2
    assert "pip install kvgate" in capsys.readouterr().err
