"""The GitHub Action's own steps on a checkout that tries to run code, to read what is not its own, and to be taken for options.

The steps are those of action.yml, run by bash as a runner does. The first one installs from the package index, once.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.documents import confined
from support.assets import require_assets, require_walls
from support.chart import ROOT
from support.command_line import MISTAKEN_POD
from support.hostile_renderings import Watch, charts, kustomizations, write

POD = MISTAKEN_POD.replace("    - --no-such-option\n", "")
FITS = POD.replace("40960", "4096")
TOKEN = "token-of-the-job"
MODULES = (
    "yaml", "click", "json", "re2", "pydantic", "dotenv", "pip", "venv", "ensurepip", "subprocess", "secrets", "sitecustomize",
    "usercustomize", "encodings", "site", "kvgate/__init__", "kvgate/__main__", "pip/__main__", "conftest", "setup",
)  # fmt: skip
PROGRAMS = ("python3", "python", "helm", "kvgate", "pip", "bash", "git", "env", "readlink")
CHART = {
    "Chart.yaml": "apiVersion: v2\nname: x\nversion: 1.0.0\n",
    "values.yaml": "a: 1\n",
    "templates/pod.yaml": POD + "{{/* x */}}\n",
}
STEPS = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


class Job:
    """A job on a runner: one checkout, and the Action's steps in it."""

    def __init__(self, folder: Path, temp: Path) -> None:
        self.workspace, self.temp = folder / "work space", temp
        self.canary, self.outside = folder / "canary", folder / "outside"
        self.summary = folder / "summary.md"
        (self.workspace / ".git").mkdir(parents=True)
        self.outside.mkdir()
        (self.outside / "secret.yaml").write_text(POD.replace("name: engine", "name: s3cr3t"))

    def put(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def make_hostile(self) -> None:
        """Modules, programs and settings that anything which trusts the current folder would run or obey; each sings."""
        song = (
            f"import os\nopen({str(self.canary)!r}, 'a').write(__file__ + os.environ.get('GITHUB_TOKEN', '') + '\\n')\n"
        )
        self.put({f"{module}.py": song for module in MODULES})
        self.put({"evil.pth": f"import os; {song}", "pyvenv.cfg": "home = .\n", ".venv/pyvenv.cfg": "home = .\n"})
        for folder in (".", "bin", ".venv/bin"):
            for program in PROGRAMS:
                if (self.workspace / folder / program).is_dir():
                    continue  # a package
                path = self.workspace / folder / program
                self.put({f"{folder}/{program}": f"#!/bin/sh\necho {folder}/{program} >>'{self.canary}'\n"})
                path.chmod(0o755)
        settings = "[global]\nindex-url = http://127.0.0.1:9/\n[install]\ntarget = stolen\n"
        self.put({"pip.conf": settings, "setup.cfg": settings, "pyproject.toml": "[build-system]\nrequires = []\n"})

    def environment(self) -> dict[str, str]:
        """With folders of the checkout on every path, as a workflow that is used to trust its own code may have them."""
        here = self.workspace
        return {
            "PATH": f".:{here}:{here}/bin:{here}/.venv/bin::{self.outside.parent / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.outside),
            "PYTHONPATH": f"{here}:.",
            "PYTHONSTARTUP": f"{here}/yaml.py",
            "PIP_CONFIG_FILE": f"{here}/pip.conf",
            "GITHUB_TOKEN": TOKEN,
            "ACTIONS_RUNTIME_TOKEN": TOKEN,
            "GITHUB_WORKSPACE": str(here),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "RUNNER_TEMP": str(self.temp),
        }

    def run(self, name: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        """One step, as a runner does it."""
        step = next(step for step in STEPS["runs"]["steps"] if step["name"] == name)
        values: dict[str, Any] = {f"inputs.{key}": entry["default"] for key, entry in STEPS["inputs"].items()}
        values |= {f"inputs.{key.replace('_', '-')}": value for key, value in inputs.items()}
        values |= {"github.action_path": str(ROOT), "runner.temp": str(self.temp)}

        def filled(text: str) -> str:
            for key, value in values.items():
                text = text.replace(f"${{{{ {key} }}}}", value)
            return text

        script = self.outside / "step.sh"
        script.write_text(filled(step["run"]))
        return subprocess.run(
            [str(script) if word == "{0}" else word for word in step["shell"].split()],
            cwd=filled(step["working-directory"]),
            env={**self.environment(), **{key: filled(value) for key, value in step["env"].items()}},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    def check(self, **inputs: str) -> subprocess.CompletedProcess[str]:
        return self.run("Check", **inputs)

    def install(self, config: pytest.Config, *programs: str) -> None:
        """Real programs on the runner."""
        assets = require_assets(config, *programs)
        (self.outside.parent / "bin").mkdir()
        for program in programs:
            (self.outside.parent / "bin" / program).symlink_to(assets / program)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RUNNER_TEMP after the first step, which a hostile checkout could not disturb."""
    temp = tmp_path_factory.mktemp("runner")
    job = Job(tmp_path_factory.mktemp("install"), temp)
    job.make_hostile()
    done = job.run("Install kvgate")
    assert done.returncode == 0, done.stderr
    assert not job.canary.exists(), job.canary.read_text()
    assert not (job.workspace / "stolen").exists()
    return temp


@pytest.fixture
def job(runner: Path, tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, runner)
    job.make_hostile()
    yield job
    assert not job.canary.exists(), job.canary.read_text()


def test_a_hostile_checkout_is_judged_and_runs_nothing(job: Job) -> None:
    job.put({"deploy/pod.yaml": POD})
    done = job.check()
    assert done.returncode == 1, done.stderr
    assert "::error file=deploy/pod.yaml,line=11,col=7,title=KVCacheTooSmall::" in done.stdout
    assert "pod engine on L4-24GB" in job.summary.read_text()


def test_a_checkout_with_a_chart_and_installed_packages_passes(job: Job) -> None:
    job.put({f"charts/x/{name}": text for name, text in CHART.items()})
    job.put(
        {"deploy/pod.yaml": FITS, "node_modules/a/package.json": "{,", "out/broken.yaml": "[", ".gitignore": "out/\n"}
    )
    done = job.check()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped: " in done.stdout
    assert "1 chart template" in done.stdout


def test_names_of_files_are_no_options_and_no_commands(job: Job) -> None:
    for name in (
        "--write-baseline=stolen.yaml",
        "--fail-on=warning.yaml",
        "-.yaml",
        "-",
        "--help.yaml",
        "a\n::error::b.yaml",
    ):
        job.put({name: FITS})
    done = job.check(paths="--write-baseline=stolen.yaml\n--fail-on=warning.yaml\n-.yaml\n--help.yaml\n.")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 engines: 9 start" in done.stdout
    assert not [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("::error::b")]
    assert not (job.workspace / "stolen.yaml").exists()


@pytest.mark.parametrize(
    "target", ["../outside/secret.yaml", "/etc/passwd", "/dev/zero", "/proc/self/environ", "x.yaml"]
)
def test_links_to_elsewhere_are_refused_at_once(job: Job, target: str) -> None:
    job.put({"deploy/pod.yaml": FITS})
    (job.workspace / "x.yaml").symlink_to(target)
    (job.workspace / "loop").symlink_to(".")
    started = time.monotonic()
    done = job.check()
    assert done.returncode == 1
    assert "title=Unreadable" in done.stdout
    assert "s3cr3t" not in done.stdout + done.stderr
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("path", ["deploy", "deploy/secret.yaml"])
def test_a_path_of_the_workflow_that_became_a_link_is_refused(job: Job, path: str) -> None:
    (job.workspace / "deploy").symlink_to("../outside")
    done = job.check(paths=path)
    assert done.returncode == 2
    assert "s3cr3t" not in done.stdout + done.stderr + job.summary.read_text()


@pytest.mark.parametrize("value", ["../outside/secret.yaml", "/dev/zero", ".git/config", "link"])
def test_a_configuration_that_names_what_is_elsewhere_ends_the_check(job: Job, value: str) -> None:
    (job.workspace / "link").symlink_to("../outside/secret.yaml")
    job.put({"pod.yaml": FITS, ".kvgate.yaml": f"modelConfig: {value}\ncalibration: {value}\n", ".git/config": TOKEN})
    done = job.check()
    assert done.returncode == 2
    assert "modelConfig" in done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert "s3cr3t" not in done.stdout + done.stderr


def test_what_goes_wrong_is_shown_where_the_runner_obeys_nothing(job: Job) -> None:
    job.put({"pod.yaml": FITS, ".kvgate.yaml": '"a\\n::error::b": 1\n'})
    done = job.check()
    assert done.returncode == 2
    first, *_, last = done.stderr.strip().splitlines()
    mark = first.removeprefix("::stop-commands::")
    assert len(mark) == 32
    assert last == f"::{mark}::"


def test_a_chart_is_judged_with_the_configuration_of_the_checkout(job: Job, pytestconfig: pytest.Config) -> None:
    job.install(pytestconfig, "helm")
    pod = POD.replace("  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}", "").replace(
        "40960", "{{ .Values.length }}"
    )
    job.put({f"charts/x/{name}": text for name, text in {**CHART, "templates/pod.yaml": pod}.items()})
    job.put({".kvgate.yaml": "accelerator: L4-24GB\n", "prod.yaml": "length: 4096\n"})
    done = job.check(chart="charts/x", helm_arguments="--values=prod.yaml\n\n--set=length=40960")
    assert done.returncode == 1, done.stderr
    assert "::error file=charts/x/templates/pod.yaml,line=" in done.stdout
    assert "pod engine on L4-24GB" in job.summary.read_text()


def test_an_argument_by_which_helm_would_run_or_fetch_is_refused(job: Job, pytestconfig: pytest.Config) -> None:
    job.install(pytestconfig, "helm")
    job.put({f"charts/x/{name}": text for name, text in CHART.items()})
    done = job.check(chart="charts/x", helm_arguments="--post-renderer=./run-me")
    assert done.returncode == 2
    assert "--post-renderer is not passed on to Helm" in done.stderr
    done = job.check(chart="oci://registry.example/x")
    assert done.returncode == 2
    assert "no folder of the checkout with a Chart.yaml" in done.stderr


def test_helm_takes_the_arguments_of_the_workflow(job: Job, pytestconfig: pytest.Config) -> None:
    job.install(pytestconfig, "helm")
    template = POD.replace("40960", "{{ .Values.length }}").replace("name: engine", "name: {{ .Release.Name }}")
    job.put({f"charts/x/{name}": text for name, text in {**CHART, "templates/pod.yaml": template}.items()})
    job.put({"prod.yaml": "length: 40960\n", "charts/x/values.yaml": "length: 4096\n"})
    assert job.check(chart="charts/x").returncode == 0
    done = job.check(chart="charts/x", helm_arguments="--values=prod.yaml\n--namespace=x")
    assert done.returncode == 1, done.stderr
    assert "pod kvgate-check on L4-24GB" in done.stdout


def test_a_repository_with_charts_is_red_for_an_engine_and_not_for_a_template(
    job: Job, pytestconfig: pytest.Config
) -> None:
    job.install(pytestconfig, "helm")
    template = POD.replace("40960", "{{ .Values.length }}")
    broken = {**CHART, "templates/pod.yaml": template + "{{ .Values.a.b.c }}\n", "Chart.yaml": CHART["Chart.yaml"]}
    job.put({f"charts/x/{name}": text for name, text in {**CHART, "templates/pod.yaml": template}.items()})
    job.put({f"charts/broken/{name}": text for name, text in broken.items()})
    job.put(
        {
            "charts/x/values.yaml": "length: 4096\n",
            "templates/other.yaml": "{{ if vllm }}\na: 1\n{{ end }}\n",
            "pod.yaml": FITS,
        }
    )
    done = job.check()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 engines: 2 start" in done.stdout
    assert "charts/broken/templates/pod.yaml" in done.stdout
    assert "1 other template" in done.stdout
    job.put({"charts/x/values.yaml": "length: 40960\n"})
    done = job.check()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "::error file=charts/x/values.yaml,line=1,col=1,title=KVCacheTooSmall::" in done.stdout
    done = job.check(chart="charts/x")
    assert "::error file=charts/x/values.yaml,line=1,col=1,title=KVCacheTooSmall::" in done.stdout
    done = job.check(chart="charts/broken")
    assert done.returncode != 0
    assert "::error file=charts/broken/templates/pod.yaml" in done.stdout
    assert ".Values.a.b.c" in done.stdout


@pytest.mark.parametrize(("arguments", "code"), [("--nothing-is-fine", 0), ("", 2)])
def test_a_checkout_without_an_engine_passes_unless_the_workflow_wants_one(job: Job, arguments: str, code: int) -> None:
    job.put({"service.yaml": "kind: Service\n"})
    assert job.check(paths="service.yaml", arguments=arguments).returncode == code


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("charts/x/files/a", "it is outside of"),
        ("prod.yaml", "it is outside of"),
        ("charts/x/deep", "KVCacheTooSmall"),
        ("charts/x/circle", "Symlink loop"),
    ],
)
def test_no_link_of_a_chart_is_followed_out_of_the_checkout(
    job: Job, pytestconfig: pytest.Config, place: str, message: str
) -> None:
    job.install(pytestconfig, "helm")
    job.put({f"charts/x/{name}": text for name, text in CHART.items()})
    job.put({"shared/b": "b"} if place == "prod.yaml" else {"shared/b": "b", "prod.yaml": "a: 1\n"})
    (job.workspace / place).parent.mkdir(exist_ok=True)
    if place == "charts/x/deep":
        (job.workspace / place).symlink_to("../../shared")
        (job.workspace / "shared" / "c").symlink_to("/etc/passwd")
    else:
        (job.workspace / place).symlink_to("circle" if place.endswith("circle") else "/etc/passwd")
    done = job.check(chart="charts/x", helm_arguments="--values\nprod.yaml")
    assert "root:" not in done.stdout + done.stderr
    assert done.returncode != 0
    assert message in done.stdout


def test_a_chart_at_the_top_is_rendered_without_what_is_gits(job: Job, pytestconfig: pytest.Config) -> None:
    job.install(pytestconfig, "helm")
    template = POD.replace("name: engine", 'name: engine, labels: {a: {{ .Files.Get ".git/config" | quote }}}')
    job.put({**CHART, "templates/pod.yaml": template, ".git/config": TOKEN})
    done = job.check(chart=".")
    assert "pod engine on L4-24GB" in job.summary.read_text()
    assert TOKEN not in done.stdout + done.stderr + job.summary.read_text()


@pytest.mark.slow
def test_hostile_charts_and_kustomizations_reach_nothing(job: Job, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """Each of them reaches something where neither wall stands: tests/integration/test_hostile_renderings.py."""
    require_walls(pytestconfig, confined.NAMESPACES, confined.LANDLOCK)
    job.install(pytestconfig, "helm", "kubectl")
    folders = [job.workspace / f"case-{index}" for index in range(len([*kustomizations(), *charts()]))]
    (tmp_path / "watch").mkdir()
    with Watch(tmp_path / "watch") as watch:
        (job.outside.parent / "bin" / "git").symlink_to(watch.programs / "git")
        for case, folder in zip([*charts(), *kustomizations()], folders, strict=True):
            write(case.files(watch), folder)
        done = job.check(arguments="--output=json=report.json")
        report = (job.workspace / "report.json").read_text()
        assert watch.noticed(done.stdout, done.stderr, report, job.summary.read_text()) == []
        found = json.loads(report)
        places = {Path(each["file"]).parts[0] for each in (*found["unrendered"], *found["documents"])}
        assert places == {folder.name for folder in folders}
        for folder in folders[: len([*charts()]) : 4]:
            done = job.check(chart=folder.name)
            assert watch.noticed(done.stdout, done.stderr) == []
            assert "not rendered" in done.stdout or "cannot be rendered" in done.stdout or "engine" in done.stdout


def test_a_python_or_a_helm_of_the_checkout_is_never_run(job: Job) -> None:
    job.put(CHART)
    for python in ("./python3", f"{job.workspace}/bin/python3", f"{job.workspace}/venv/bin/python3", "no-such-python"):
        (job.workspace / "venv" / "bin").mkdir(parents=True, exist_ok=True)
        if not (job.workspace / "venv" / "bin" / "python3").exists():
            (job.workspace / "venv" / "bin" / "python3").symlink_to(sys.executable)
        done = job.check(python=python)
        assert done.returncode == 2
        assert "part of the checkout, which is not run" in done.stderr
    shutil.rmtree(job.workspace / "venv")
    if shutil.which("helm") is None:
        done = job.check(chart=".")
        assert "needs helm on the runner, outside of the checkout" in done.stderr


def hooked(job: Job, runner: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The hook as pre-commit runs it: a clone of this repository, arguments, then names of files; installed before."""
    clone = job.outside / "clone"
    shutil.copytree(ROOT / "tools", clone / "tools", ignore=shutil.ignore_patterns("bin"))
    shutil.copytree(ROOT / "requirements", clone / "requirements")
    shutil.copytree(runner / "kvgate-environment", clone / ".kvgate-environment", symlinks=True)
    pinned = (clone / "requirements" / "cli.txt").read_text()
    (clone / ".kvgate-environment" / "made-of").write_text(f"{sys.version}\n{pinned}")
    environment = {**job.environment(), "KVGATE_PYTHON": sys.executable}
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["language"] == "script"
    return subprocess.run(
        [clone / hook["entry"], *arguments],
        cwd=job.workspace,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_hook_runs_nothing_of_the_repository_and_takes_no_file_for_an_option(job: Job, runner: Path) -> None:
    job.put({"--write-baseline=stolen.yaml": FITS, "--help.yaml": FITS, "pod.yaml": POD})
    (job.workspace / "link.yaml").symlink_to("../outside/secret.yaml")
    done = hooked(
        job, runner, "--fail-on=warning", "--help.yaml", "--write-baseline=stolen.yaml", "link.yaml", "pod.yaml"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "3 engines: " in done.stdout
    assert "link.yaml:1:1: " in done.stdout
    assert "s3cr3t" not in done.stdout + done.stderr
    assert not (job.workspace / "stolen.yaml").exists()


def test_a_file_with_the_name_of_an_option_ends_no_options(job: Job, runner: Path) -> None:
    job.put({"--output=json": "", "pod.yaml": FITS})
    assert hooked(job, runner, "--output=json", "pod.yaml").stdout.startswith("{")


def test_the_hook_installs_once_for_each_state_of_the_pinned_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plugins import pinned_kvgate

    made: list[Path] = []
    monkeypatch.setattr(
        pinned_kvgate, "_make", lambda environment: made.append(environment) or environment.mkdir(exist_ok=True)
    )
    monkeypatch.setattr(pinned_kvgate, "PINNED", tmp_path / "pinned.txt")
    for text in ("a==1", "a==1", "a==2"):
        (tmp_path / "pinned.txt").write_text(text)
        pinned_kvgate._renew(tmp_path / "environment")
    assert len(made) == 2


def test_every_package_is_pinned_by_hash_and_none_is_built() -> None:
    lines = (ROOT / "requirements" / "cli.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert all("==" in line and line.endswith("\\") for line in pinned)
    assert "://" not in "".join(lines)
    development = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    assert [line for line in pinned if line not in development] == []


def test_a_token_is_handed_on_only_where_the_workflow_asks_for_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration of the checkout may ask for one too: then not even the token of the runner's own user is read."""
    from plugins import pinned_kvgate

    for name in ("HF_TOKEN", "HF_ENDPOINT", "HTTPS_PROXY", "GITHUB_TOKEN"):
        monkeypatch.setenv(name, "x")
    without = pinned_kvgate._fetching("TERM", asks=False)
    assert without["HF_HUB_DISABLE_IMPLICIT_TOKEN"] == "1"
    assert not without.keys() & {"HF_TOKEN", "HF_ENDPOINT", "HTTPS_PROXY", "GITHUB_TOKEN"}
    asked = pinned_kvgate._fetching("TERM", asks=True)
    assert asked.keys() >= {"HF_TOKEN", "HF_ENDPOINT", "HTTPS_PROXY"}
    assert not asked.keys() & {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "GITHUB_TOKEN"}
