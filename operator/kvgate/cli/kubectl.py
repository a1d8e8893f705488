"""`kubectl kvgate [flags of kubectl get] [-- flags of kvgate check]`: check what is in the current context.

The cluster is asked through kubectl, with its configuration and rights; nothing but reads is asked.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from kvgate.cli.terminal import show_error, show_lines

Json = dict[str, Any]

KINDS = (
    "inferencedeployments.kvgate.io", "deployments.apps", "statefulsets.apps", "daemonsets.apps", "replicasets.apps",
    "jobs.batch", "cronjobs.batch", "pods", "leaderworkersets.leaderworkerset.x-k8s.io", "rollouts.argoproj.io",
    "llminferenceservices.serving.kserve.io", "llminferenceserviceconfigs.serving.kserve.io",
    "inferenceservices.serving.kserve.io", "servingruntimes.serving.kserve.io", "clusterservingruntimes.serving.kserve.io",
    "models.kubeai.org", "workspaces.kaito.sh", "inferencesets.kaito.sh", "multiroleinferences.kaito.sh",
    "dynamographdeployments.nvidia.com", "dynamocomponentdeployments.nvidia.com", "podcliquesets.grove.io",
    "podcliquescalinggroups.grove.io", "podcliques.grove.io", "rayservices.ray.io", "rayclusters.ray.io",
    "vllmruntimes.production-stack.vllm.ai", "configmaps", "persistentvolumeclaims",
    "resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io",
)  # fmt: skip
"""Kinds that may run vLLM, that such objects refer to, or that stand between an object and its pods; kinds that the cluster does
not have are left out."""
USAGE = "usage: kubectl kvgate [flags of kubectl get] [-- flags of kvgate check]"
_CONNECTION = frozenset(
    {
        "--as", "--as-group", "--as-uid", "--cache-dir", "--certificate-authority", "--client-certificate", "--client-key",
        "--cluster", "--context", "--kubeconfig", "--request-timeout", "--server", "-s", "--tls-server-name", "--token", "--user",
    }
)  # fmt: skip
"""Flags of every kubectl command that take a value."""
_TIMEOUT_SECONDS = 120


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends with the exit code of `kvgate check`, or 2 where the cluster does not answer."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    split = given.index("--") if "--" in given else len(given)
    if {"-h", "--help"} & set(given[:split]):
        show_lines(USAGE)
        sys.exit(0)
    sys.exit(_checked(_objects(given[:split]), given[split + 1 :]))


def _objects(flags: list[str]) -> bytes:
    """Return the listed objects with their owners: pods and deployments of a judged object are judged through it."""
    known = _known_kinds(flags)
    kinds = ",".join(kind for kind in KINDS if kind in known)
    return _without_owned(_kubectl("get", kinds, "--output=json", "--ignore-not-found", *flags))


def _without_owned(listed: bytes) -> bytes:
    try:
        found = json.loads(listed or b"{}")
    except ValueError:
        sys.exit(
            _failed(f"kubectl kvgate: kubectl did not answer in JSON; flags of kvgate check stand behind --\n{USAGE}")
        )
    items = found.get("items", ())
    listed_uids = {_metadata(item).get("uid") for item in items}
    own = [item for item in items if not listed_uids & set(_owners(item))]
    return json.dumps({**found, "items": own}).encode()


def _owners(item: Json) -> Iterator[str]:
    return (owner["uid"] for owner in _metadata(item).get("ownerReferences") or ())


def _metadata(item: Json) -> Json:
    return item.get("metadata") or {}


def _known_kinds(flags: list[str]) -> frozenset[str]:
    """Return the kinds of the API server, by full name."""
    return frozenset(_kubectl("api-resources", "--output=name", *_connection(flags)).decode().split())


def _connection(flags: list[str]) -> Iterator[str]:
    """Those that say which server is asked and as whom: `--context=prod`, `--context prod`."""
    for flag, following in zip_longest(flags, flags[1:]):
        name, equals, _ = flag.partition("=")
        if name in _CONNECTION:
            yield from (flag,) if equals or following is None else (flag, following)
        elif name == "--insecure-skip-tls-verify":
            yield flag


def _kubectl(*arguments: str) -> bytes:
    """Return what kubectl lists; what it cannot list besides (a missing right or API server) is reported."""
    program = os.environ.get("KUBECTL") or _kubectl_on_path()
    try:
        done = subprocess.run(  # noqa: S603 - the user's own kubectl with the user's own flags
            [program, *arguments], capture_output=True, check=False, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.exit(_failed(f"kubectl kvgate: {program} did not answer: {error}"))
    if done.returncode:
        code = _failed(done.stderr.decode(errors="replace"))
        if not done.stdout.strip():
            sys.exit(code)
    return done.stdout


def _kubectl_on_path() -> str:
    """Never in the current folder, which a relative folder of PATH would mean."""
    folders = filter(os.path.isabs, os.environ.get("PATH", "").split(os.pathsep))
    program = shutil.which("kubectl", path=os.pathsep.join(folders))
    return program or sys.exit(_failed("kubectl kvgate: there is no kubectl on PATH; install it, or set KUBECTL"))


def _failed(message: str) -> int:
    show_error(*message.rstrip().split("\n"))
    return 2


def _checked(objects: bytes, flags: list[str]) -> int:
    # -I: neither the current folder nor PYTHONPATH is where modules come from
    command = [sys.executable, "-I", "-m", "kvgate", "check", "-", *flags]
    return subprocess.run(command, input=objects, check=False).returncode  # noqa: S603 - ourselves
