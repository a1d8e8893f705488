"""`kubectl kvgate [flags of kubectl get] [-- flags of kvgate check]`: check what is in the current context.

kubectl reads the cluster, with its own configuration and rights; nothing is written.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kvgate.cli.terminal import show_error, show_lines

Json = dict[str, Any]

_RESOURCES = Path(__file__).parent / "data" / "kubectl_resources.txt"
"""Resources that may run vLLM, that such objects refer to, or that stand between an object and its pods. `make generate` writes the
file from the readers of platforms. Resources that the cluster does not have are not requested."""
USAGE = "usage: kubectl kvgate [flags of kubectl get] [-- flags of kvgate check]"
_TIMEOUT_SECONDS = 120
_CONNECTION = frozenset(
    {
        "--as", "--as-group", "--as-uid", "--cache-dir", "--certificate-authority", "--client-certificate", "--client-key",
        "--cluster", "--context", "--kubeconfig", "--request-timeout", "--server", "-s", "--tls-server-name", "--token", "--user",
    }
)  # fmt: skip
"""Flags of every kubectl command that take a value."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit with the code of `kvgate check`, or with 2 where the cluster does not answer."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    split = given.index("--") if "--" in given else len(given)
    flags, check_flags = given[:split], given[split + 1 :]
    if {"-h", "--help"} & set(flags):
        show_lines(USAGE)
        sys.exit(0)
    known = frozenset(kubectl("api-resources", "--output=name", *_connection(flags)).decode().split())
    resources = ",".join(name for name in _RESOURCES.read_text(encoding="utf-8").split() if name in known)
    listed = kubectl("get", resources, "--output=json", "--ignore-not-found", *flags)
    # -I: modules come neither from the current folder nor from PYTHONPATH
    command = [sys.executable, "-I", "-m", "kvgate", "check", "-", *check_flags]
    sys.exit(subprocess.run(command, input=_without_owned(listed), check=False).returncode)  # noqa: S603 - ourselves


def _connection(flags: list[str]) -> Iterator[str]:
    """Yield the flags that select the server and the user: `--context=prod`, `--context prod`."""
    for flag, following in zip_longest(flags, flags[1:]):
        name, equals, _ = flag.partition("=")
        if name in _CONNECTION:
            yield from (flag,) if equals or following is None else (flag, following)
        elif name == "--insecure-skip-tls-verify":
            yield flag


def _without_owned(listed: bytes) -> bytes:
    """Drop every object whose owner is listed too: pods and deployments of a judged object are judged through it."""
    try:
        found = json.loads(listed or b"{}")
    except ValueError:
        sys.exit(
            _failed(f"kubectl kvgate: kubectl did not answer in JSON\nput flags of kvgate check behind --\n{USAGE}")
        )
    items = found.get("items", ())
    listed_uids = {_metadata(item).get("uid") for item in items}
    own = [
        item
        for item in items
        if not any(owner["uid"] in listed_uids for owner in _metadata(item).get("ownerReferences") or ())
    ]
    return json.dumps({**found, "items": own}).encode()


def _metadata(item: Json) -> Json:
    return item.get("metadata") or {}


def apply_object(body: Json, context: str) -> None:
    """Apply one object on the server side; where it changed since it was read, the command ends."""
    connection = [f"--context={context}"] if context else []
    how = ("--server-side", "--force-conflicts", "--field-manager=kvgate-calibrate", "-f", "-")
    kubectl("apply", *how, *connection, given=json.dumps(body).encode())


def kubectl(*arguments: str, given: bytes | None = None) -> bytes:
    """Return what kubectl prints; errors beside a list (a missing right or API server) are printed."""
    # only absolute folders of PATH: a relative one would mean the current folder
    folders = os.pathsep.join(filter(os.path.isabs, os.environ.get("PATH", "").split(os.pathsep)))
    program = os.environ.get("KUBECTL") or shutil.which("kubectl", path=folders)
    if not program:
        sys.exit(_failed("kubectl kvgate: there is no kubectl on PATH\ninstall it, or set KUBECTL"))
    try:
        done = subprocess.run(  # noqa: S603 - the user's own kubectl with the user's own flags
            [program, *arguments], input=given, capture_output=True, check=False, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.exit(_failed(f"kubectl kvgate: {program} did not answer: {error}"))
    if done.returncode:
        code = _failed(done.stderr.decode(errors="replace"))
        if not done.stdout.strip():
            sys.exit(code)
    return done.stdout


def _failed(message: str) -> int:
    show_error(*message.rstrip().split("\n"))
    return 2
