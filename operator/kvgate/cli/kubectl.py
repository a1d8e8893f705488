"""`kubectl kvgate [flags of kubectl get] [-- flags of kvgate check]`: check what is in the current context.

The cluster is asked through kubectl, with its configuration and rights; nothing but reads is asked.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

KINDS = (
    "inferencedeployments.kvgate.io", "deployments.apps", "statefulsets.apps", "jobs.batch", "cronjobs.batch", "pods",
    "leaderworkersets.leaderworkerset.x-k8s.io", "rollouts.argoproj.io", "llminferenceservices.serving.kserve.io",
    "llminferenceserviceconfigs.serving.kserve.io", "inferenceservices.serving.kserve.io", "servingruntimes.serving.kserve.io",
    "models.kubeai.org", "workspaces.kaito.sh", "dynamographdeployments.nvidia.com", "rayservices.ray.io",
    "vllmruntimes.production-stack.vllm.ai", "configmaps",
)  # fmt: skip
"""What may run vLLM, and what such objects refer to; kinds that the cluster does not have are left out."""
_TIMEOUT_SECONDS = 120


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends with the exit code of `kvgate check`, or 2 where the cluster does not answer."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    split = given.index("--") if "--" in given else len(given)
    sys.exit(_checked(_objects(given[:split]), given[split + 1 :]))


def _objects(flags: list[str]) -> bytes:
    """Objects that nobody owns: pods and deployments of another object are judged through it."""
    kinds = ",".join(kind for kind in KINDS if kind in _known_kinds(flags))
    listed = _kubectl("get", kinds, "--output=json", "--ignore-not-found", *flags)
    return _without_owned(listed)


def _without_owned(listed: bytes) -> bytes:
    found = json.loads(listed or b"{}")
    items = [item for item in found.get("items", ()) if not item.get("metadata", {}).get("ownerReferences")]
    return json.dumps({**found, "items": items}).encode()


def _known_kinds(flags: list[str]) -> frozenset[str]:
    """What the API server has, by full name."""
    connection = [flag for flag in flags if flag.startswith(("--context=", "--kubeconfig=", "--cluster=", "--user="))]
    return frozenset(_kubectl("api-resources", "--output=name", *connection).decode().split())


def _kubectl(*arguments: str) -> bytes:
    program = os.environ.get("KUBECTL", "kubectl")
    try:
        done = subprocess.run(  # noqa: S603 - the user's own kubectl with the user's own flags
            [program, *arguments], capture_output=True, check=False, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.exit(_failed(f"kubectl kvgate: {program} did not answer: {error}"))
    if done.returncode:
        sys.exit(_failed(done.stderr.decode(errors="replace")))
    return done.stdout


def _failed(message: str) -> int:
    print(message.rstrip(), file=sys.stderr)
    return 2


def _checked(objects: bytes, flags: list[str]) -> int:
    command = [sys.executable, "-m", "kvgate", "check", "-", *flags]
    return subprocess.run(command, input=objects, check=False).returncode  # noqa: S603 - ourselves
