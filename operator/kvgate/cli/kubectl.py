"""`kubectl kvgate [flags of kubectl get] [-- flags of kvgate check]`: check what is in the current context; `kubectl kvgate why pod/NAME`;
`kubectl kvgate preview --vllm-version V`: what another release of vLLM changes for all InferenceDeployments.

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
from tempfile import TemporaryDirectory
from typing import Any

from kvgate.cli.terminal import show_error, show_lines

Json = dict[str, Any]

_RESOURCES = Path(__file__).parent / "data" / "kubectl_resources.txt"
"""Resources that may run vLLM, that such objects refer to, or that stand between an object and its pods. `make generate` writes the
file from the readers of platforms. Resources that the cluster does not have are not requested."""
USAGE = (
    "usage: kubectl kvgate [flags of kubectl get] [-- flags of kvgate check], or kubectl kvgate why pod/NAME|infd/NAME [flags],"
    " or kubectl kvgate preview --vllm-version V [flags of kubectl get] [-- flags of kvgate diff]"
)
KIND, OWNER_LABEL = "InferenceDeployment", "kvgate.io/inferencedeployment"
_PLURAL = "inferencedeployments.kvgate.io"
"""Names of the API and of its pods' label, written again because their modules take longer to import than the rest of the start."""
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
    if flags[:1] == ["why"]:
        sys.exit(_why(flags[1:], check_flags))
    if flags[:1] == ["preview"]:
        sys.exit(_preview(flags[1:], check_flags))
    known = frozenset(kubectl("api-resources", "--output=name", *_connection(flags)).decode().split())
    resources = ",".join(name for name in _RESOURCES.read_text(encoding="utf-8").split() if name in known)
    listed = kubectl("get", resources, "--output=json", "--ignore-not-found", *flags)
    # -I: modules come neither from the current folder nor from PYTHONPATH
    command = [sys.executable, "-I", "-m", "kvgate", "check", "-", *check_flags]
    sys.exit(subprocess.run(command, input=_without_owned(listed), check=False).returncode)  # noqa: S603 - ourselves


def _preview(flags: list[str], diff_flags: list[str]) -> int:
    """Let `kvgate diff` compare the live objects with the same ones under another release of vLLM. The exit code is that of `diff`."""
    version, flags = _without_flag("--vllm-version", flags)
    if not version:
        return _failed(f"kubectl kvgate preview: name the release: --vllm-version 0.34.0\n{USAGE}")
    listed = json.loads(kubectl("get", _PLURAL, "--output=json", *flags) or b"{}")
    before = [{**item, "status": {}} for item in listed.get("items", [listed])]
    if any("configFrom" in ((item.get("spec") or {}).get("model") or {}) for item in before):
        before += json.loads(kubectl("get", "configmaps", "--output=json", *flags) or b"{}").get("items", [])
    after = list[Json]()
    for item in before:  # an image of its own stays, whose release nobody can choose here
        spec = item.get("spec") or {}
        changed = {**spec, "vllm": {**(spec.get("vllm") or {}), "version": version}}
        after.append({**item, "spec": changed} if item.get("kind") == KIND else item)
    with TemporaryDirectory(prefix="kvgate-") as folder:
        for side, items in (("live", before), ("preview", after)):
            Path(folder, side).mkdir()
            Path(folder, side, "fleet.json").write_text(
                json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
            )
        command = [sys.executable, "-I", "-m", "kvgate", "diff", "./live", "./preview", *diff_flags]
        code = subprocess.run(command, cwd=folder, check=False).returncode  # noqa: S603 - ourselves
    show_error(_new_pods(before, version))
    return code


def _new_pods(items: Sequence[Json], version: str) -> str:
    """Say whose pods another release replaces: those without an image of their own whose release is not that one already."""
    settings = [(item["spec"] or {}).get("vllm") or {} for item in items if item.get("kind") == KIND and "spec" in item]
    new = sum(not each.get("image") and each.get("version") != version for each in settings)
    return f"vLLM {version} means new pods for {new} of {len(settings)} InferenceDeployments"


def _without_flag(name: str, flags: list[str]) -> tuple[str, list[str]]:
    """Return the value of a flag, empty where it is not there, and the other flags: `--flag=value`, `--flag value`."""
    for index, flag in enumerate(flags):
        if flag == name:
            return "".join(flags[index + 1 : index + 2]), flags[:index] + flags[index + 2 :]
        if flag.startswith(f"{name}="):
            return flag.partition("=")[2], flags[:index] + flags[index + 1 :]
    return "", flags


_MAX_PODS = 4
_MAX_LOG_BYTES = 32 << 20


def _why(arguments: list[str], flags: list[str]) -> int:
    """Gather what the cluster says about the pods of an object, and let `kvgate why` answer; the user's kubectl only reads."""
    target, *where = arguments or [""]
    kind, _, name = target.partition("/")
    if not name or not kind:
        return _failed(f"kubectl kvgate why: name a pod or another object that has pods, such as pod/vllm-0\n{USAGE}")
    given = [(target, text) for pod in _pods_of(kind, name, where) for text in _texts_of(pod, where)]
    if not given:
        return _failed(f"kubectl kvgate why: {target} has no pod")
    bundle = {"kvgateBundle": 1, "kvgate": "", "given": given, "options": {}, "answer": {}}
    command = [sys.executable, "-I", "-m", "kvgate", "why", "-", *flags]
    return subprocess.run(command, input=json.dumps(bundle).encode(), check=False).returncode  # noqa: S603 - ourselves


def _pods_of(kind: str, name: str, where: list[str]) -> list[Json]:
    """Return the pods of an object, those that are not ready first."""
    if kind in ("pod", "pods", "po"):
        return [json.loads(kubectl("get", "pod", name, "--output=json", *where))]
    found = json.loads(kubectl("get", kind, name, "--output=json", *where))
    selector = ((found.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    if found.get("kind") == KIND:
        selector = {OWNER_LABEL: name}
    wanted = ",".join(f"{key}={value}" for key, value in selector.items())
    pods = (
        json.loads(kubectl("get", "pods", f"--selector={wanted}", "--output=json", *where)).get("items", [])
        if wanted
        else []
    )
    return sorted(pods, key=_is_ready)[:_MAX_PODS]


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _texts_of(pod: Json, where: list[str]) -> Iterator[str]:
    """Yield the pod, its node's labels, its events, and both logs, as far as the user may read them."""
    name, node = _metadata(pod)["name"], (pod.get("spec") or {}).get("nodeName")
    yield json.dumps(pod)
    if node:
        labels = _metadata(json.loads(_read("get", "node", node, "--output=json", *_connection(where)) or b"{}")).get(
            "labels"
        )
        yield json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": labels or {}}})
    described = _read("describe", "pod", name, *where).decode(errors="replace")
    yield described[described.find("\nEvents:") + 1 :] if "\nEvents:" in described else ""
    options = ("--all-containers", f"--limit-bytes={_MAX_LOG_BYTES}", *where)
    for previous in (("--previous",), ()):
        yield _read("logs", name, *previous, *options).decode(errors="replace")


def _read(*arguments: str) -> bytes:
    """Return what kubectl prints; nothing where it fails, because a pod may have no earlier container, and a user no right to nodes."""
    return kubectl(*arguments, is_optional=True)


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


def kubectl(*arguments: str, given: bytes | None = None, is_optional: bool = False) -> bytes:
    """Return what kubectl prints; errors beside a list (a missing right or API server) are printed, but not those of an optional one."""
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
    if done.returncode and not is_optional:
        code = _failed(done.stderr.decode(errors="replace"))
        if not done.stdout.strip():
            sys.exit(code)
    return done.stdout


def _failed(message: str) -> int:
    show_error(*message.rstrip().split("\n"))
    return 2
