"""controlplane/build.py of tools/ without building: what identifies a binary, where it is looked for, what happens when Go fails."""

import dataclasses
import hashlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from controlplane import build, downloads
from support import assets
from support.processes import place

pytestmark = pytest.mark.slow

shutil_which = shutil.which
NAMES = ["etcd", "kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler", "kwok", "helm"]
NAMES += ["prometheus", "promtool", "kubeconform", "actionlint"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no binaries of the machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("KVGATE_DOWNLOADS", "off")
    monkeypatch.setattr(build.shutil, "which", lambda name: shutil_which(name) if name == "go" else None)
    return build.cache_folder()


def tool(name: str) -> build.Tool:
    return build.choose([name])[0]


def place_stored(*names: str) -> None:
    for name in names:
        place(tool(name).stored)


def given(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str, release: str = "v1.36.0") -> Path:
    """A folder such as setup-envtest makes, named by the environment."""
    for name in names:
        place(folder / name, f"echo Kubernetes {release}")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))
    return folder


# ── identity ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("etcd", "v3.6.16"),
        ("kube-apiserver", "v1.36.3"),
        ("kubectl", "v1.36.3"),
        ("kwok", "v0.8.0"),
        ("helm", "v4.3.1"),
        ("promtool", "v0.311.3"),
    ],
)
def test_the_version_is_the_one_go_mod_pins(name: str, version: str) -> None:
    assert tool(name).version == version


def test_kubernetes_binaries_are_told_their_version() -> None:
    flags = tool("kube-apiserver").linker_flags
    assert "-X k8s.io/component-base/version.gitVersion=v1.36.3" in flags
    assert "-X k8s.io/client-go/pkg/version.gitMinor=36" in flags


def test_prometheus_is_told_its_release_which_the_version_of_its_module_only_encodes() -> None:
    assert tool("prometheus").release == "3.11.3"
    assert "common/version.Version=3.11.3" in tool("prometheus").linker_flags
    assert tool("kwok").release == "0.8.0"


def test_a_module_without_the_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "etcd").mkdir()
    (tmp_path / "etcd" / "go.mod").write_text("module example.test/etcd\n\ngo 1.26.0\n", encoding="utf-8")
    with pytest.raises(build.BuildError, match=r"etcd/go\.mod requires no module for go\.etcd\.io"):
        _ = dataclasses.replace(tool("etcd"), folder=tmp_path).version


def test_a_second_clone_has_the_same_hash(tmp_path: Path) -> None:
    shutil.copytree(build.MODULES / "etcd", tmp_path / "etcd")
    assert dataclasses.replace(tool("etcd"), folder=tmp_path).content_hash == tool("etcd").content_hash


@pytest.mark.parametrize("changed", ["go.mod", "go.sum"])
def test_a_changed_file_changes_the_hash(tmp_path: Path, changed: str) -> None:
    shutil.copytree(build.MODULES / "etcd", tmp_path / "etcd")
    with (tmp_path / "etcd" / changed).open("a", encoding="utf-8") as file:
        file.write("// changed\n")
    assert dataclasses.replace(tool("etcd"), folder=tmp_path).content_hash != tool("etcd").content_hash


def test_changed_build_flags_change_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = tool("etcd").content_hash
    monkeypatch.setitem(build.BUILD_ENVIRONMENT, "CGO_ENABLED", "1")
    assert tool("etcd").content_hash != before
    assert dataclasses.replace(tool("kwok"), version_variables=("main.v={version}",)).content_hash != before
    assert dataclasses.replace(tool("etcd"), tags=("lean",)).build_flags[2] == "-tags=lean"


# ── sources, in their order ───────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_machine_has_no_assets() -> None:
    assert build.find_assets() is None


def test_one_missing_binary_is_no_assets() -> None:
    place_stored(*NAMES[:-1])
    assert build.find_assets() is None
    assert build.find_assets(NAMES[:-1]) is not None


def test_stored_binaries_are_gathered_in_one_folder() -> None:
    place_stored(*NAMES)
    folder = build.find_assets()
    assert folder is not None
    assert sorted(path.name for path in folder.iterdir()) == sorted(NAMES)
    assert build.find_assets() == folder


def test_a_complete_folder_of_the_environment_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_stored(*NAMES)
    assert build.find_assets() != given(tmp_path / "given", monkeypatch, *NAMES) == build.find_assets()


def test_what_the_environment_lacks_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_stored(*NAMES)
    theirs = given(tmp_path / "given", monkeypatch, "etcd", "kube-apiserver", "kubectl")
    folder = build.find_assets()
    assert folder is not None
    assert (folder / "kube-apiserver").resolve() == theirs / "kube-apiserver"
    assert (folder / "kwok").resolve() == tool("kwok").stored.resolve()


def test_two_kubernetes_minors_are_never_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_stored(*NAMES)
    theirs = given(tmp_path / "given", monkeypatch, "etcd", "kube-apiserver", "kubectl", release="v1.31.0")
    folder = build.find_assets()
    assert folder is not None
    assert (folder / "kube-apiserver").resolve() == tool("kube-apiserver").stored.resolve()
    assert (folder / "etcd").resolve() == theirs / "etcd"


def test_a_file_nobody_may_execute_is_not_a_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(tmp_path / "given", monkeypatch, *NAMES)
    (tmp_path / "given" / "etcd").chmod(0o644)
    assert build.find_assets() is None


@pytest.mark.parametrize(
    ("names", "kubernetes", "message"),
    [
        (["etcd", "ectd"], build.KUBERNETES, r"unknown tools \['ectd'\]: choose from \['etcd', "),
        ([], "1.99", r"--kubernetes 1\.99: no folder kube-1\.99 in .*; write it with gen_kube\.py"),
    ],
)
def test_what_we_cannot_build_is_said(names: list[str], kubernetes: str, message: str) -> None:
    with pytest.raises(build.BuildError, match=message):
        build.choose(names, kubernetes)


@pytest.mark.parametrize(("release", "is_taken"), [("3.6.1", True), ("3.5.9", False)])
def test_a_program_of_the_machine_is_used_where_its_minor_release_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, *, is_taken: bool
) -> None:
    place(tmp_path / release / "etcd", f"echo etcd Version: {release}")
    monkeypatch.setattr(build.shutil, "which", lambda name: str(tmp_path / release / name))
    assert (build.find_assets(["etcd"]) is not None) == is_taken


# ── what projects publish ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def published(tmp_path: Path) -> Iterator[downloads.Archive]:
    """A server on the loopback with an archive of two binaries and a third file."""
    folder = tmp_path / "published"
    folder.mkdir()
    with tarfile.open(folder / "tools.tar.gz", "w:gz") as archive:
        for name in ("bin/etcd", "bin/kubectl", "bin/README"):
            content = b"#!/bin/sh\necho " + name.encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    sha512 = hashlib.sha512((folder / "tools.tar.gz").read_bytes()).hexdigest()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/tools.tar.gz"
        yield downloads.Archive(url=url, sha512=sha512, tools=("etcd", "kubectl"))
        server.shutdown()
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def store(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KVGATE_DOWNLOADS")
    return cache / "store"


def test_what_is_wanted_of_an_archive_is_unpacked_and_found_again(published: downloads.Archive, store: Path) -> None:
    (said,) = downloads.download(["etcd", "helm"], store, [published])
    assert said.startswith("etcd: downloaded in ")
    found = downloads.find("etcd", store, [published])
    assert found
    assert subprocess.run([found], capture_output=True, text=True, check=True).stdout == "bin/etcd\n"
    assert downloads.find("kubectl", store, [published]) is None


def test_another_content_than_the_committed_sum_is_not_used(published: downloads.Archive, store: Path) -> None:
    other = dataclasses.replace(published, sha512="0" * 128)
    assert downloads.download(["etcd"], store, [other]) == [
        f"{other.url} has another SHA-512 than downloads.csv: not used"
    ]
    assert downloads.find("etcd", store, [other]) is None


def test_a_missing_archive_is_said_and_others_are_used(published: downloads.Archive, store: Path) -> None:
    gone = dataclasses.replace(published, url=f"{published.url}.gone", tools=("helm",))
    said = downloads.download(["etcd", "helm"], store, [gone, published])
    assert sorted(said) == ["etcd: downloaded in 0 s", f"{gone.url}: HTTP Error 404: File not found"]


def test_a_network_that_says_nothing_is_given_up_and_go_builds(
    fake_go: Path, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = socket.create_server(("127.0.0.1", 0))  # it accepts, and never answers
    url = f"http://127.0.0.1:{silent.getsockname()[1]}/tools.tar.gz"
    known = (downloads.Archive(url=url, sha512="0" * 128, tools=("etcd",)),)
    monkeypatch.setattr(downloads, "archives", lambda: known)
    monkeypatch.setattr(build.downloads, "download", partial(downloads.download, silence_seconds=0.3))
    started = time.monotonic()
    with silent:
        assert build.main(["etcd"]) == 0
    assert time.monotonic() - started < 3
    assert "nothing came from the network for 0.3 s: the rest is built here" in capsys.readouterr().out
    assert fake_go.exists()


@pytest.mark.parametrize("machine", ["amd64", "arm64"])
def test_every_committed_sum_has_an_address_and_the_page_of_its_publisher(machine: str) -> None:
    found = downloads.archives(machine=machine)
    assert {name for archive in found for name in archive.tools} == set(NAMES[:5])
    minor = ".".join(tool("kube-apiserver").release.split(".")[:2])
    for archive in found:
        assert f"v{minor}." in archive.url, "of the release line that is built"
        assert len(bytes.fromhex(archive.sha512)) == hashlib.sha512().digest_size
    assert downloads.archives(machine="riscv64") == ()


# ── building ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Go which notes what it is asked to build and writes a program there (the argument after -o)."""
    asked = tmp_path / "asked"
    script = f"""
    [ "$1" = env ] && echo go1.99.0 && exit
    while [ "$1" != -o ]; do shift; done; place=$2; shift 2; echo "$*" >> {asked}
    for each; do
      case "$place" in */) file=$place${{each##*/}};; *) file=$place;; esac
      echo '#!/bin/sh' > "$file"; chmod +x "$file"
    done"""
    place(tmp_path / "bin" / "go", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return asked


def test_only_what_is_missing_is_built_and_only_once(fake_go: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place_stored(*(name for name in NAMES if name not in ("kwok", "helm")))
    assert build.ensure_assets() == build.find_assets() == build.ensure_assets()
    assert fake_go.read_text(encoding="utf-8").split() == ["sigs.k8s.io/kwok/cmd/kwok", "helm.sh/helm/v4/cmd/helm"]
    assert "[2/2] helm v4.3.1: built in" in capsys.readouterr().out


def test_tools_of_one_module_are_built_by_one_command(fake_go: Path) -> None:
    build.ensure_assets(["kube-apiserver", "etcd", "kubectl"])
    assert [line.split() for line in fake_go.read_text(encoding="utf-8").splitlines()] == [
        ["go.etcd.io/etcd/server/v3"],
        ["k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kubectl"],
    ]
    assert build.find_assets(["kube-apiserver", "etcd", "kubectl"])


def test_the_last_line_names_the_folder(fake_go: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["etcd"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"KUBEBUILDER_ASSETS={build.find_assets(['etcd'])}"


def test_what_the_environment_lacks_is_said(
    fake_go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = given(tmp_path / "given", monkeypatch, "kubectl")
    build.ensure_assets(["etcd"])
    assert f"KUBEBUILDER_ASSETS={theirs} does not serve etcd" in capsys.readouterr().out


def test_a_failed_build_shows_what_go_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place(tmp_path / "bin" / "go", "[ $1 = env ] && echo go1.99.0 && exit; echo undefined: etcdmain >&2; exit 2")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert build.main(["etcd"]) == 1
    assert "failed with 2:\nundefined: etcdmain" in capsys.readouterr().err
    assert list((build.cache_folder() / "store").iterdir()) == []


def test_a_long_build_shows_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "HEARTBEAT_SECONDS", 0.05)
    build.run([sys.executable, "-c", "import time; time.sleep(0.3)"], tmp_path, "[1/1] etcd")
    assert capsys.readouterr().out.count("[1/1] etcd: 0 s") >= 2


def test_a_second_build_waits_for_the_first(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order = []

    def second() -> None:
        with build.exclusive(cache / "lock"):
            order.append("second")

    with build.exclusive(cache / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert "another build is running" in capsys.readouterr().out


# ── Go ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("go1.26.8\n", (1, 26, 8)),
        ("module m\n\ngo 1.26.0\n\nrequire x v1.2.3\n", (1, 26, 0)),
        ("go1.27rc1", (1, 27)),
        ("", (0,)),
    ],
)
def test_a_go_release_is_read_from_go_and_from_go_mod(text: str, release: tuple[int, ...]) -> None:
    assert build.go_line(text) == release


@pytest.mark.parametrize(("on_path", "used"), [("go1.26.0", "machine"), ("go1.27.1", "machine"), ("go1.25.9", "cache")])
def test_an_old_go_is_replaced_by_the_one_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: str, used: str
) -> None:
    places = {
        "machine": place(tmp_path / "bin" / "go", f"echo {on_path}"),
        "cache": place(build.cache_folder() / "go-1.26.0" / "go" / "bin" / "go"),
    }
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert build.go_command((1, 26, 0)) == places[used]


# ── what a test does without binaries ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("value", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_missing_binaries_skip_unless_they_are_required(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, value: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setattr(assets, "say_loudly", lambda config, text: None)
    monkeypatch.setenv("KVGATE_REQUIRE_APISERVER", value)
    with pytest.raises(outcome, match="`make tools` builds them"):
        assets.require_assets(pytestconfig)


def test_the_skip_is_seen_without_asking_for_it(tmp_path: Path) -> None:
    test = tmp_path / "test_cluster.py"
    test.write_text(
        "from support.assets import require_assets\ndef test_it(pytestconfig): require_assets(pytestconfig)\n"
    )
    paths = os.pathsep.join([str(Path(build.__file__).parents[1]), str(Path(assets.__file__).parents[1])])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", tmp_path, "-p", "no:cacheprovider", "-c", os.devnull, test],
        env=os.environ | {"PYTHONPATH": paths, "KVGATE_REQUIRE_APISERVER": ""}, text=True, capture_output=True,
    )  # fmt: skip
    assert "NOT TESTED: the control plane's binaries are missing" in run.stdout
    assert "1 skipped" in run.stdout
