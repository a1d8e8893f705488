"""kvgate out of an environment of pinned packages, on a checkout that nobody trusts: the steps of action.yml, the hook, and Krew's plugin.

Standard library only, run isolated. Of the checkout nothing is run and nothing is imported; of this process's environment
variables, which may hold tokens, only a few are handed on.
"""

import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINNED = ROOT / "requirements" / "cli.txt"
CHECK_SECONDS = 900
"""A check of the largest repositories takes some seconds."""
MAX_SUMMARY_BYTES = 1_000_000
"""GitHub shows a summary of up to 1 MiB."""
UNDECIDED = 2
"""Exit code where nothing could be judged."""
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
        return {"install": install, "check": check, "hook": hook, "kubectl": kubectl}[step]()
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
    environment = _renewed()
    arguments = _separated(sys.argv[2:])
    variables = _fetching("TERM", "KVGATE_DOCS_URL", asks="--fetch" in arguments)
    command = [*_kvgate(environment), "check", "--root", str(Path.cwd()), "--nothing-is-fine", *arguments]
    try:
        return subprocess.run(command, cwd=ROOT, env=variables, timeout=CHECK_SECONDS, check=False).returncode
    except subprocess.TimeoutExpired:
        raise Stop(f"the check was not done after {CHECK_SECONDS} seconds and was stopped") from None


def kubectl() -> int:
    """`kubectl kvgate` as Krew installs it: kubectl's own configuration, and so its variables, decide which cluster is read."""
    program = "from kvgate.cli.kubectl import main; main()"
    return subprocess.run(
        [_python(_renewed()), "-I", "-X", "utf8", "-c", program, *sys.argv[2:]], check=False
    ).returncode


def _renewed() -> Path:
    """Return the environment in the folder of the repository or plugin."""
    environment = ROOT / ".kvgate-environment"
    with (ROOT / ".kvgate-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _renew(environment)
    return environment


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
    first = next(
        (index for index, word in enumerate(words) if os.path.lexists(word) and _may_be_given(word)), len(words)
    )
    return [*words[:first], "--", *words[first:]]


def _may_be_given(word: str) -> bool:
    """Whether pre-commit may give a file of this name: one called `--fail-on=warning` would else end the options before the hook's own."""
    return not word.startswith("-") or word.endswith((".yaml", ".yml", ".json"))


def check() -> int:
    """Judge the paths, or what a chart renders to: annotations on standard output, a table in the job's summary."""
    workspace = Path(os.environ["GITHUB_WORKSPACE"])
    chart, paths = os.environ.get("KVGATE_CHART", ""), _lines("KVGATE_PATHS")
    table = _temporary("kvgate-summary.md")
    table.unlink(missing_ok=True)
    arguments = _lines("KVGATE_ARGUMENTS")
    if chart:
        if not (workspace / chart / "Chart.yaml").is_file():
            raise Stop(f"the input `chart` names {chart}, which is no folder of the checkout with a Chart.yaml")
        if shutil.which("helm") is None:
            raise Stop("the input `chart` needs helm on the runner, outside of the checkout")
        paths = [chart]
        arguments += (f"--helm-argument={line}" for line in _lines("KVGATE_HELM_ARGUMENTS"))
    asks = os.environ.get("KVGATE_FETCH", "").strip().lower() == "true"
    command = [
        *_kvgate(_environment()), "check", "--root", str(workspace), *(["--fetch"] if asks else []), *arguments,
        "--output=github", f"--output=markdown={table}", "--", *paths,
    ]  # fmt: skip
    code, messages = _run(command, cwd=table.parent, variables=_fetching("KVGATE_DOCS_URL", asks=asks))
    _show(messages)
    _append(table)
    return code


def _run(command: Sequence[str], *, cwd: Path, variables: Mapping[str, str]) -> tuple[int, bytes]:
    """(exit code, standard error)."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=variables,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=CHECK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        _show(error.stderr or b"")
        raise Stop(f"the check was not done after {CHECK_SECONDS} seconds and was stopped") from None
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
