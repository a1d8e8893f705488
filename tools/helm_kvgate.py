"""`helm kvgate CHART [flags of helm template] [-- flags of kvgate check]`: render, then check what would be installed."""

import os
import shutil
import subprocess
import sys

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
    kvgate = shutil.which("kvgate")
    if not chart or kvgate is None:
        print(USAGE if kvgate else "helm kvgate needs kvgate on PATH: pip install kvgate", file=sys.stderr)
        return 2
    helm = os.environ.get("HELM_BIN", "helm")
    rendered = subprocess.run([helm, "template", RELEASE, *chart], stdout=subprocess.PIPE, check=False)
    if rendered.returncode:
        return rendered.returncode
    return subprocess.run([kvgate, "check", "-", *check], input=rendered.stdout, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
