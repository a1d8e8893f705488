"""`helm kvgate CHART [flags of helm template] [-- flags of kvgate check]`: check what would be installed.

A chart in a folder is rendered by `kvgate check`, in its sandbox; a chart from elsewhere by Helm, which fetches it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

USAGE = "usage: helm kvgate CHART [flags of helm template] [-- flags of kvgate check]"
RELEASE = "kvgate-check"
"""Name of the release that is rendered and never installed."""
_CHECKOUT = Path(__file__).resolve().parents[2]


def main(arguments: list[str]) -> int:
    """The exit code of `kvgate check`, or Helm's where it cannot render."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    chart, check = arguments[:split], arguments[split + 1 :]
    if {"-h", "--help"} & set(chart):
        print(USAGE)
        return 0
    kvgate, helm = _program("kvgate"), os.environ.get("HELM_BIN") or _program("helm")
    if not chart or kvgate is None or helm is None:
        missing = f"kvgate on PATH: pip install {_CHECKOUT}" if kvgate is None else "helm on PATH"
        print(USAGE if kvgate and helm else f"helm kvgate needs {missing}", file=sys.stderr)
        return 2
    folder = next((each for each in chart if Path(each, "Chart.yaml").is_file()), None)
    if folder is not None:
        arguments = (f"--helm-argument={each}" for each in chart if each != folder)
        variables = {**_own(), "PATH": os.pathsep.join((str(Path(helm).parent), os.environ.get("PATH", "")))}
        return subprocess.run(
            [kvgate, "check", *arguments, *check, "--", folder], env=variables, check=False
        ).returncode
    rendered = subprocess.run([helm, "template", RELEASE, *chart], stdout=subprocess.PIPE, check=False)
    if rendered.returncode:
        return rendered.returncode
    return subprocess.run([kvgate, "check", "-", *check], input=rendered.stdout, env=_own(), check=False).returncode


def _program(name: str) -> str | None:
    """Find it on PATH, but not in the current folder, which a relative folder of PATH means: the chart may be anybody's."""
    folders = filter(os.path.isabs, os.environ.get("PATH", "").split(os.pathsep))
    return shutil.which(name, path=os.pathsep.join(folders))


def _own() -> dict[str, str]:
    """Return the environment without variables that lead Python to modules of the current folder, such as PYTHONPATH=."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
