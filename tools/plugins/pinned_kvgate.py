"""kvgate out of an environment of pinned packages, on a checkout that nobody trusts: the steps of action.yml, and the hook.

Standard library only, run isolated. Of the checkout nothing is run and nothing is imported; of this process's environment
variables, which may hold tokens, only a few are handed on.
"""

import fcntl
import os
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINNED = ROOT / "requirements" / "cli.txt"
RELEASE = "kvgate-check"
"""Name of the release that is rendered and never installed."""
HELM_SECONDS = 120
"""A chart can hold loops of any length."""
CHECK_SECONDS = 900
"""A check of the largest repositories takes some seconds."""
MAX_SUMMARY_BYTES = 1_000_000
"""GitHub shows a summary of up to 1 MiB."""
UNDECIDED = 2
"""Exit code where nothing could be judged."""
_GIT = ".git"
_KEPT = ("PATH", "LANG")
_NETWORK = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
"""Variables that pip needs to reach its index, and a fetch to reach a hub."""
_HUB = ("HF_ENDPOINT", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HOME")
"""Variables of huggingface_hub. They are handed on where the workflow, or the hook's own arguments, ask for a fetch."""
_NO_TOKEN = {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
"""A `.kvgate.yaml` of the checkout may ask for a fetch too: then no token of the runner is read."""


class Stop(Exception):
    """The step ends with this sentence."""


def main(step: str) -> int:
    """Run one step; the exit code."""
    try:
        return {"install": install, "check": check, "hook": hook}[step]()
    except Stop as error:
        print(f"kvgate: {error}", file=sys.stderr)
        return UNDECIDED


def install() -> int:
    """The Action's first step."""
    _make(_environment())
    return 0


def _make(environment: Path) -> None:
    """Pinned wheels by hash, and kvgate itself from the folder of this file, without building anything."""
    venv.create(environment, with_pip=True, clear=True)
    index = os.environ.get("PIP_INDEX_URL")
    command = [
        _python(environment), "-I", "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "--quiet",
        "--require-hashes", "--no-compile", "--only-binary=:all:", "--no-deps", *([f"--index-url={index}"] if index else []),
        "--requirement", str(PINNED),
    ]  # fmt: skip
    if subprocess.run(command, env=_variables(*_NETWORK), check=False).returncode:
        raise Stop(f"pip could not install {PINNED}; its last lines say why")
    packages = sysconfig.get_path("purelib", "venv", vars={"base": str(environment), "platbase": str(environment)})
    Path(packages, "kvgate.pth").write_text(f"{ROOT / 'operator'}\n", encoding="utf-8")


def hook() -> int:
    """The hook of pre-commit: its arguments, then files of the repository in the current folder."""
    environment = ROOT / ".kvgate-environment"
    with (ROOT / ".kvgate-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _renew(environment)
    arguments = _separated(sys.argv[2:])
    variables = _fetching("TERM", "KVGATE_DOCS_URL", asks="--fetch" in arguments)
    command = [*_kvgate(environment), "check", "--root", str(Path.cwd()), "--nothing-is-fine", *arguments]
    try:
        return subprocess.run(command, cwd=ROOT, env=variables, timeout=CHECK_SECONDS, check=False).returncode
    except subprocess.TimeoutExpired:
        raise Stop(f"the check was not done after {CHECK_SECONDS} seconds and was stopped") from None


def _renew(environment: Path) -> None:
    """Made once for each state of the pinned packages and each Python."""
    state = f"{sys.version}\n{PINNED.read_text(encoding='utf-8')}"
    made = environment / "made-of"
    if not made.is_file() or made.read_text(encoding="utf-8") != state:
        print("kvgate: installing its pinned packages, once", file=sys.stderr)
        _make(environment)
        made.write_text(state, encoding="utf-8")


def _separated(words: Sequence[str]) -> list[str]:
    """Insert `--` before the first word that is a file here: the checkout may hold a file with the name of an option."""
    if "--" in words:
        return list(words)
    first = next((index for index, word in enumerate(words) if os.path.lexists(word)), len(words))
    return [*words[:first], "--", *words[first:]]


def check() -> int:
    """Judge the paths, or what a chart renders to: annotations on standard output, a table in the job's summary."""
    workspace = Path(os.environ["GITHUB_WORKSPACE"])
    chart, paths = os.environ.get("KVGATE_CHART", ""), _lines("KVGATE_PATHS")
    table, rendered = _temporary("kvgate-summary.md"), _temporary("kvgate-rendered.yaml")
    table.unlink(missing_ok=True)
    places: list[str] = []
    if chart:
        _render(chart, workspace, rendered)
        paths, places = ["-"], _path_map(workspace, chart)
    asks = os.environ.get("KVGATE_FETCH", "").strip().lower() == "true"
    command = [
        *_kvgate(_environment()), "check", "--root", str(workspace), *(["--fetch"] if asks else []), *_lines("KVGATE_ARGUMENTS"), *places,
        "--output=github", f"--output=markdown={table}", "--", *paths,
    ]  # fmt: skip
    with Path(rendered if chart else os.devnull).open("rb") as stdin:
        code, messages = _run(
            command, CHECK_SECONDS, cwd=table.parent, stdin=stdin, variables=_fetching("KVGATE_DOCS_URL", asks=asks)
        )
    _show(messages)
    _append(table)
    return code


def _render(chart: str, workspace: Path, rendered: Path) -> None:
    """Write down the output of `helm template`. Helm runs nothing of a chart, but it follows links in it."""
    arguments = _lines("KVGATE_HELM_ARGUMENTS")
    for link in _links_out([chart, *_files_in(arguments)], workspace):
        raise Stop(f"{link} is a link that leads out of the checkout, and Helm would follow it; remove it")
    helm = shutil.which("helm")
    if helm is None:
        raise Stop("the input `chart` needs helm on the runner, outside of the checkout")
    if (
        workspace / chart / _GIT
    ).exists():  # with its settings, which may hold credentials, a template could print them
        chart = str(_copy(workspace / chart))
    command = [helm, "template", *arguments, "--", RELEASE, chart]
    with rendered.open("wb") as stdout:
        code, messages = _run(command, HELM_SECONDS, cwd=workspace, stdout=stdout, variables=_variables("HOME"))
    _show(messages)
    if code:
        raise Stop(f"helm template ended with exit code {code}")


def _path_map(workspace: Path, chart: str) -> list[str]:
    """The option by which findings are shown in the chart's templates."""
    name = re.search(
        r"""^name: *["']?([\w.-]+)""", (workspace / chart / "Chart.yaml").read_text(errors="replace"), re.MULTILINE
    )
    return [f"--path-map={name[1]}={chart}"] if name else []


def _copy(chart: Path) -> Path:
    """The chart without what is Git's."""
    copied = _temporary("kvgate-chart")
    shutil.rmtree(copied, ignore_errors=True)
    return Path(shutil.copytree(chart, copied, ignore=shutil.ignore_patterns(_GIT)))


def _files_in(arguments: Iterable[str]) -> Iterator[str]:
    """Words of arguments that may be files: `--values=a.yaml,b.yaml`, `--set-file=key=a.txt`, and the word after a flag."""
    for argument in arguments:
        for word in argument.split(","):
            yield word.rpartition("=")[2]


def _links_out(paths: Iterable[str], workspace: Path) -> Iterator[Path]:
    """Links in or on the way to these paths of the workspace, through whatever other links, that lead out of it."""
    top = workspace.resolve()
    written = (Path(os.path.normpath(workspace / path)) for path in paths)  # as they are written, no link followed
    waiting = [path for path in written if path.is_relative_to(workspace)]
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path.name == _GIT and not path.is_symlink():
            continue
        try:
            target = path.resolve()
        except (OSError, RuntimeError):
            yield path
            continue
        if not target.is_relative_to(top) or _GIT in target.relative_to(top).parts:
            yield path
        elif target.is_dir() and target not in seen:
            seen.add(target)
            waiting += sorted(target.iterdir())


def _run(
    command: Sequence[str], seconds: int, *, cwd: Path, variables: Mapping[str, str], **streams: object
) -> tuple[int, bytes]:
    """(exit code, standard error)."""
    try:
        done = subprocess.run(  # type: ignore[call-overload]
            command, cwd=cwd, env=variables, stderr=subprocess.PIPE, timeout=seconds, check=False, **streams
        )
    except subprocess.TimeoutExpired as error:
        _show(error.stderr or b"")
        raise Stop(f"{Path(command[0]).name} was not done after {seconds} seconds and was stopped") from None
    return done.returncode, done.stderr


def _show(messages: bytes) -> None:
    """Print on standard error, where nothing is a command for the runner: messages may hold words of the checkout."""
    if messages.strip():
        mark = secrets.token_hex(16)
        sys.stderr.write(f"::stop-commands::{mark}\n{messages.decode(errors='replace').rstrip()}\n::{mark}::\n")
        sys.stderr.flush()


def _append(table: Path) -> None:
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and table.exists():
        with Path(summary).open("ab") as file:
            file.write(table.read_bytes()[:MAX_SUMMARY_BYTES])


def _fetching(*names: str, asks: bool) -> dict[str, str]:
    """The variables for a check that may fetch models."""
    return _variables(*names, *_NETWORK, *_HUB) if asks else {**_variables(*names), **_NO_TOKEN}


def _variables(*names: str) -> dict[str, str]:
    return {name: os.environ[name] for name in (*_KEPT, *names) if name in os.environ}


def _lines(name: str) -> list[str]:
    """The lines of an input; blank ones say nothing."""
    return [line for line in os.environ.get(name, "").splitlines() if line.strip()]


def _environment() -> Path:
    return _temporary("kvgate-environment")


def _temporary(name: str) -> Path:
    return Path(os.environ["RUNNER_TEMP"], name)


def _kvgate(environment: Path) -> list[str]:
    """Isolated: modules come from the environment only, not from the current folder or PYTHONPATH."""
    return [_python(environment), "-I", "-X", "utf8", "-m", "kvgate"]


def _python(environment: Path) -> str:
    return str(environment / "bin" / "python")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
