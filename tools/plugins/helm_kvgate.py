"""`helm kvgate CHART [flags of helm template] [-- flags of kvgate check]`: render, then check what would be installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

USAGE = "usage: helm kvgate CHART [flags of helm template] [-- flags of kvgate check]"
RELEASE = "kvgate-check"
"""Name of the release that is rendered and never installed."""


def main(arguments: list[str]) -> int:
    """The exit code of `kvgate check`, or Helm's where it cannot render."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    chart, check = arguments[:split], arguments[split + 1 :]
    if {"-h", "--help"} & set(chart):
        print(USAGE)
        return 0
    kvgate, helm = _program("kvgate"), os.environ.get("HELM_BIN") or _program("helm")
    if not chart or kvgate is None or helm is None:
        missing = "kvgate on PATH: pip install kvgate" if kvgate is None else "helm on PATH"
        print(USAGE if kvgate and helm else f"helm kvgate needs {missing}", file=sys.stderr)
        return 2
    rendered = subprocess.run([helm, "template", RELEASE, *chart], stdout=subprocess.PIPE, check=False)
    if rendered.returncode:
        return rendered.returncode
    places = [] if any(each.startswith("--path-map") for each in check) else _templates(chart)
    command = [kvgate, "check", "-", *places, *check]
    return subprocess.run(command, input=rendered.stdout, env=_own(), check=False).returncode


def _templates(arguments: list[str]) -> list[str]:
    """Return the option by which findings stand in the templates of a chart that is a folder; none for a chart from elsewhere."""
    for each in arguments:
        try:
            with Path(each, "Chart.yaml").open(encoding="utf-8") as file:
                named = re.search(r"(?m)^name:[ \t]*[\"']?([\w.-]+)", file.read(1 << 20))
        except (OSError, ValueError):  # a flag, a value of one, or the name of a chart
            continue
        return ["--path-map", f"{named[1]}={each}"] if named else []
    return []


def _program(name: str) -> str | None:
    """Find it on PATH, but not in the current folder, which a relative folder of PATH means: the chart may be anybody's."""
    folders = filter(os.path.isabs, os.environ.get("PATH", "").split(os.pathsep))
    return shutil.which(name, path=os.pathsep.join(folders))


def _own() -> dict[str, str]:
    """Return the environment without variables that lead Python to modules of the current folder, such as PYTHONPATH=."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
