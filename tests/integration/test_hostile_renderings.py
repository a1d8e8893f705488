"""Hostile kustomizations and charts under the real kubectl and Helm: each of the two walls alone holds every one of them.

A spelling is for the allow-list to know; the kernel never sees it, and holds each thing that a case wants in one spelling.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvgate.documents import confined, helm, kustomizations, kustomize, programs
from support.assets import require_assets, require_walls
from support.command_line import invoked
from support.hostile_renderings import Case, Watch, charts, write
from support.hostile_renderings import kustomizations as hostile_kustomizations

Run = Callable[[Path, Sequence[str], Path], bytes | programs.Failed]
WALLS = (confined.NAMESPACES, confined.LANDLOCK)
CASES = [*hostile_kustomizations(), *charts()]


def run_unconfined(program: Path, arguments: Sequence[str], folder: Path) -> bytes | programs.Failed:
    """Run the program as a person would: with PATH, network and every file."""
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, timeout=60, check=False)
    return done.stdout if done.returncode == 0 else programs.Failed(message=done.stderr.decode())


def lift_allow_list(patch: pytest.MonkeyPatch) -> None:
    """Hand kustomize and Helm the checkout as it is, with its links, and let kustomize load what it likes."""

    def build(program: Path, _: kustomize.Layout) -> bytes | programs.Failed:
        verb = "build" if program.stem == "kustomize" else "kustomize"
        with programs.TemporaryDirectory() as folder:
            copy = shutil.copytree(Path.cwd(), Path(folder, "copy"), symlinks=True)
            arguments = [verb, "--load-restrictor=LoadRestrictionsNone", str(copy)]
            return kustomize.run_program(program, arguments, Path(folder))

    def files(folder: Path, _: Path) -> Iterator[tuple[Path, bytes]]:
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
        return ((path.relative_to(folder), path.read_bytes()) for path in paths)

    def enter(copy: helm.Copy) -> helm.Copy:
        shutil.copytree(copy.chart.folder, copy.folder, symlinks=True)
        return copy

    patch.setattr(kustomizations, "refusal_of", lambda _: "")
    patch.setattr(kustomize, "lay_out", lambda *_: kustomize.Layout(folders={}, names={}))
    patch.setattr(kustomize, "build", build)
    patch.setattr(helm, "refusal_of", lambda _: "")
    patch.setattr(helm, "chart_files", files)
    patch.setattr(helm, "files_to_render", lambda _, own, __: own)
    patch.setattr(helm.Copy, "__enter__", enter)


class Bench:
    """A checkout for each case, and real programs."""

    def __init__(self, watch: Watch, tools: Path, folder: Path) -> None:
        self.watch, self.tools, self.folder = watch, tools, folder

    def checkout(self, case: Case) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / ".git").mkdir(parents=True)
        write(case.files(self.watch), self.folder)

    def noticed(self, run: Run, *, is_listed: bool) -> list[str]:
        """Return what the watch saw while `kvgate check` judged the checkout."""
        outputs = list[Any]()

        def recorded(program: Path, arguments: Sequence[str], folder: Path) -> bytes | programs.Failed:
            outputs.append(run(program, arguments, folder))
            return outputs[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", f"{self.watch.programs}:{self.tools}:/usr/bin:/bin")
            patch.chdir(self.folder)
            if not is_listed:
                lift_allow_list(patch)
            patch.setattr(kustomize, "run_program", recorded)
            patch.setattr(helm, "run_program", recorded)
            outputs.append(invoked("check", ".", "-o", "json").output)
        return self.watch.noticed(*outputs)


@pytest.fixture(scope="module")
def bench(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    require_walls(pytestconfig, *WALLS)
    folder = tmp_path_factory.mktemp("hostile")
    with Watch(folder) as watch:
        yield Bench(watch, require_assets(pytestconfig, "helm", "kubectl"), folder / "checkout")


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Run]:
    """The runner behind one wall of the kernel."""

    def behind(wall: str) -> Run:
        monkeypatch.setattr(programs, "wall", lambda: wall)
        return programs.run_program

    return behind


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_each_wall_alone_holds(bench: Bench, only: Callable[[str], Run], case: Case) -> None:
    bench.checkout(case)
    assert bench.noticed(run_unconfined, is_listed=False), "without any wall it does nothing, so it proves nothing"
    assert not bench.noticed(run_unconfined, is_listed=True), "the allow-list alone"
    for wall in () if case.is_respelt else WALLS:
        assert not bench.noticed(only(wall), is_listed=False), f"{wall} alone"
    assert not bench.noticed(programs.run_program, is_listed=True), "everything"


def test_there_are_enough_cases() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 250
    assert sum(not case.is_respelt for case in CASES) >= 150
