"""controlplane/debian_prometheus.py with stand-ins for apt-get and dpkg-deb: what is fetched once, what is said without them."""

import os
from pathlib import Path

import pytest

from controlplane import debian_prometheus
from controlplane.build import BuildError, cache_folder
from support import prometheus
from support.processes import place


@pytest.fixture(autouse=True)
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All of PATH: an archive which has one release, and counts how often it is asked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    offer(tmp_path / "bin", "2.42.0+ds-5")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path / "bin"


def offer(folder: Path, version: str) -> None:
    place(folder / "apt-get", f"touch prometheus.deb; echo asked >> {folder}/asked")
    unpack = "mkdir -p unpacked/usr/bin; touch unpacked/usr/bin/prometheus"
    place(folder / "dpkg-deb", f'[ "$1" = --field ] && echo {version} || {{ {unpack}; }}')


def test_it_is_fetched_once_and_kept_under_its_version(bin_folder: Path) -> None:
    assert debian_prometheus.find_debian() is None
    folder = debian_prometheus.ensure_debian()
    assert folder == cache_folder() / "debian-prometheus-2.42.0+ds-5/usr/bin" == debian_prometheus.find_debian()
    assert debian_prometheus.ensure_debian() == folder
    assert (bin_folder / "asked").read_text() == "asked\n"
    assert sorted(path.name for path in cache_folder().iterdir()) == ["debian-prometheus-2.42.0+ds-5", "lock"]


def test_a_release_of_another_line_is_refused(bin_folder: Path) -> None:
    offer(bin_folder, "3.5.0-1")
    with pytest.raises(BuildError, match=r"Debian's prometheus is 3\.5\.0-1 here, and not a release 2\.x"):
        debian_prometheus.ensure_debian()
    assert debian_prometheus.find_debian() is None


def test_a_refusal_of_apt_is_told_with_what_may_help(bin_folder: Path) -> None:
    place(bin_folder / "apt-get", "echo E: Unable to locate package >&2; exit 100")
    with pytest.raises(BuildError, match=r"apt-get download .*Unable to locate package; `apt-get update` may help"):
        debian_prometheus.ensure_debian()


@pytest.mark.parametrize(("required", "status"), [("", 0), ("1", 1)])
def test_a_machine_without_apt_is_told_and_fails_only_where_it_is_required(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], required: str, status: int
) -> None:
    (bin_folder / "apt-get").unlink()
    monkeypatch.setenv("PATH", str(bin_folder))
    monkeypatch.setenv("KVGATE_REQUIRE_PROMETHEUS", required)
    assert debian_prometheus.main() == status
    assert "NO PROMETHEUS 2, what needs it is not tested: no apt-get here" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["2", "3"])
@pytest.mark.parametrize(("value", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_line_skips_its_tests_unless_it_is_required(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, line: str, value: str, outcome: type[BaseException]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(prometheus, "say_loudly", lambda config, text: said.append(text))
    monkeypatch.setenv("KVGATE_REQUIRE_PROMETHEUS", value)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", "")
    with pytest.raises(outcome, match=f"Prometheus {line} is missing: `make tools` provides it"):
        prometheus.require_prometheus(pytestconfig, line)
    assert bool(said) == (outcome is pytest.skip.Exception)
