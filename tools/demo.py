"""Run `make demo`: kvgate's main job on a real Kubernetes API server on this machine, from check to clean-up.

Every step says what it proves, and the demo ends with 0 only if each did.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.build import BuildError, ensure_assets
from controlplane.certificates import write_certificates
from controlplane.plane import PROGRAMS, ControlPlane
from controlplane.programs import ControlPlaneError, free_port, free_ports, wait_until
from controlplane.prometheus import PrometheusError
from fleet.doors import DoorError, door, scrape, wait_ready
from fleet.fake_gpus import fake_gpu_node
from fleet.local_webhook import webhook_configuration

ROOT = Path(__file__).resolve().parent.parent
KVGATE = ROOT / ".venv" / "bin" / "kvgate"
SAMPLES = Path("deploy/samples")
CRDS = Path("crds")
NODES = (
    fake_gpu_node("gpu-h100", product="NVIDIA-H100-80GB-HBM3", memory_mib=81559, gpus=8),
    fake_gpu_node("gpu-a100", product="NVIDIA-A100-SXM4-80GB", memory_mib=81920, gpus=8),
    fake_gpu_node("gpu-h100-nvl", product="NVIDIA-H100-NVL", memory_mib=95830, gpus=4),
    fake_gpu_node("gpu-l4", product="NVIDIA-L4", memory_mib=23034, gpus=4),
    fake_gpu_node("gpu-l40s", product="NVIDIA-L40S", memory_mib=46068, gpus=4),
)
VERDICTS = {
    "fits.yaml": ("created", "True", False),
    "long-context.yaml": ("created", "True", False),
    "hybrid.yaml": ("created", "True", False),
    "too-long.yaml": ("refused", "", False),
    "adjusted.yaml": ("created", "True", True),
    "unknown.yaml": ("created", "Unknown", True),
    "tight.yaml": ("created", "True", True),
}
"""Sample → the outcome of `kubectl apply`, the status of its condition Accepted afterwards, and True where kubectl warns."""


class DemoFailed(Exception):
    """A step did not do what it says."""


def main() -> int:
    """Run it; the message of a failure is the last line."""
    print(
        "kvgate demo: vLLM deployments admitted by their KV-cache budget, on a real Kubernetes API server on this machine.\n"
        "Loopback only, no GPU, no container engine; everything is removed at the end.",
        flush=True,
    )
    started = time.monotonic()
    os.chdir(ROOT)
    if not succeeds("demo", run):
        return 1
    print(f"\ndemo: every step did what it says ({time.monotonic() - started:.0f} s); nothing is left running")
    return 0


def succeeds(name: str, steps: Callable[[], None]) -> bool:
    """Run the steps; the message of a failed step is the last line."""
    try:
        steps()
    except (DemoFailed, DoorError, BuildError, ControlPlaneError, PrometheusError, subprocess.SubprocessError) as error:
        notes = "\n".join(getattr(error, "__notes__", []))
        print(f"\n{name} FAILED: {error}\n{notes}".rstrip(), file=sys.stderr)
        return False
    return True


def run() -> None:
    """The steps, in order."""
    check_without_a_cluster()
    title("The control plane: etcd, API server, controller manager, scheduler and kwok (built once per machine)")
    assets = ensure_assets(PROGRAMS)
    with ControlPlane(assets) as plane, tempfile.TemporaryDirectory(prefix="kvgate-demo-") as folder:
        version = plane.kubectl("version", "-o", "json").stdout
        say(f"Kubernetes {version.split('gitVersion')[-1].split(chr(34))[2]} answers on {plane.url}")
        install(plane)
        with webhook(plane, Path(folder)), controller(plane, Path(folder)) as metrics_port:
            apply_samples(plane)
            show_state(plane)
            refuse_an_edit(plane)
            explain_what_waits(plane)
            show_ledger()
            show_metrics(metrics_port)
    title("Clean-up")
    say("control plane, webhook and controller are stopped, their folders are gone")


def title(text: str) -> None:
    print(f"\n── {text}", flush=True)


def say(text: str) -> None:
    print("\n".join(f"   {line}" for line in text.rstrip().splitlines()), flush=True)


def expect(condition: object, message: str) -> None:
    if not condition:
        raise DemoFailed(message)


def check_without_a_cluster() -> None:
    """The verdicts come from the files alone."""
    title("kvgate check deploy/samples: the verdicts without a cluster")
    done = subprocess.run([KVGATE, "check", SAMPLES], capture_output=True, text=True, check=False)
    say(done.stdout + done.stderr)
    expect(
        done.returncode == 1, f"kvgate check ended with {done.returncode}; 1 was due, for the sample that cannot fit"
    )
    expect("too-long.yaml" in done.stdout, "kvgate check did not name too-long.yaml")


def install(plane: ControlPlane) -> None:
    """The CRDs, and GPU nodes that exist on paper."""
    title("Install: the CRDs, and five nodes with GPUs on paper (8 × H100, 4 × H100 NVL, 8 × A100, 4 × L4, 4 × L40S)")
    say(plane.kubectl("apply", "-f", str(CRDS)).stdout)
    plane.apply(*NODES)
    wait_until(lambda: plane.kubectl("get", "infd", check=False).returncode == 0, "the API server serves the new kind")


@contextmanager
def webhook(plane: ControlPlane, folder: Path, *, metrics: tuple[str, int] | None = None) -> Iterator[None]:
    """The admission door, and the chart's configuration that sends reviews to it; `metrics` is an address for those."""
    title("kvgate webhook: started, and registered with the chart's own configuration")
    write_certificates(folder)
    port, metrics_port = free_ports(2)
    metrics_host, metrics_port = metrics or ("127.0.0.1", metrics_port)
    listening = ("--host", "127.0.0.1", "--port", str(port))
    options = (*listening, "--metrics-host", metrics_host, "--metrics-port", str(metrics_port))
    tls = ("--tls-cert", str(folder / "tls.crt"), "--tls-key", str(folder / "tls.key"))
    with door("webhook", log := folder / "webhook.log", *options, *tls) as process:
        wait_ready("webhook", process, log, metrics_port, host=metrics_host)
        plane.apply(webhook_configuration(ca_pem=(folder / "ca.crt").read_text(), port=port))
        wait_until(lambda: refuses(plane), "the API server asks the webhook")
        say("ready; the API server asks it")
        yield


def refuses(plane: ControlPlane) -> bool:
    """A fresh configuration is honoured after a moment; a dry run tells when."""
    path = str(SAMPLES / "too-long.yaml")
    return plane.kubectl("apply", "--dry-run=server", "-f", path, check=False).returncode != 0


@contextmanager
def controller(plane: ControlPlane, folder: Path, *more: str, metrics: tuple[str, int] | None = None) -> Iterator[int]:
    """The controller, by the kubeconfig of this control plane, with more options; yields the port of its metrics."""
    title("kvgate controller: started")
    host, port = metrics or ("127.0.0.1", free_port())
    options = ("--metrics-host", host, "--metrics-port", str(port), "--kubeconfig", str(plane.kubeconfig), *more)
    with door("controller", log := folder / "controller.log", *options) as process:
        wait_ready("controller", process, log, port, host=host)
        say("ready")
        yield port


def apply_samples(plane: ControlPlane) -> None:
    """kubectl's own words."""
    title(
        "kubectl apply of the samples: some fit, one is refused, one is adjusted, one is unknown, one is a close call"
    )
    for name, (outcome, _, warns) in VERDICTS.items():
        say(f"$ kubectl apply -f deploy/samples/{name}")
        done = plane.kubectl("apply", "-f", str(SAMPLES / name), check=False)
        say(done.stderr + done.stdout)
        refused = done.returncode != 0
        expect(refused == (outcome == "refused"), f"{name} should be {outcome}")
        expect(("Warning:" in done.stderr) == warns, f"{name} should come with{'' if warns else 'out'} a warning")
        if refused:
            expect("Would fit" in done.stderr and "GiB" in done.stderr, "the refusal carries no numbers")


def show_state(plane: ControlPlane) -> None:
    """Conditions, effective values, scheduled pods."""
    title("kubectl get infd,pods")
    wait_until(lambda: settled(plane), "every object has its verdict and its pods are ready")
    say(plane.kubectl("get", "infd,pods", "-o", "wide").stdout)
    adjusted = plane.kubectl(
        "get", "infd", "qwen3-32b", "-o", "jsonpath={.spec.vllm.maxNumSeqs} {.status.effective.maxNumSeqs}"
    )
    asked, effective = map(int, adjusted.stdout.split())
    expect(effective < asked, "the adjusted sample is not rendered with smaller values")
    say(f"qwen3-32b asks for maxNumSeqs {asked}; rendered are {effective} (status.effective); its spec is untouched")


def settled(plane: ControlPlane) -> bool:
    """Accepted as it should be, and every rendered replica running."""
    accepted, ready = (f'{{.status.conditions[?(@.type=="{kind}")].status}}' for kind in ("Accepted", "Ready"))
    path = f"{{range .items[*]}}{{.metadata.name}}={accepted}/{ready} {{end}}"
    states = dict(item.split("=", 1) for item in plane.kubectl("get", "infd", "-o", f"jsonpath={path}").stdout.split())
    wanted = sorted(status for outcome, status, _ in VERDICTS.values() if outcome == "created")
    return sorted(state.split("/")[0] for state in states.values()) == wanted and all(
        s.endswith("/True") for s in states.values()
    )


RUNNING = "llama-3-1-8b"
"""The sample that is edited and scaled."""


def refuse_an_edit(plane: ControlPlane) -> None:
    """Ask for eight times the requests: the edit is refused, and nothing happens to the pods."""
    title(f"kubectl patch infd {RUNNING}: an edit that does not fit is refused, and the pods stay")
    before = pods_of(plane)
    patch = '{"spec": {"vllm": {"maxNumSeqs": 64}}}'
    say(f"$ kubectl patch infd {RUNNING} --type=merge -p '{patch}'")
    done = plane.kubectl("patch", "infd", RUNNING, "--type=merge", "-p", patch, check=False)
    say(done.stderr)
    expect(done.returncode != 0 and "GiB" in done.stderr, "the edit should be refused with numbers")
    expect(pods_of(plane) == before, "the pods of the admitted spec should stay")
    say(f"{len(before.split())} pods run as before: {before}")


def pods_of(plane: ControlPlane) -> str:
    """The pods' names, in their order."""
    selector = f"--selector=kvgate.io/inferencedeployment={RUNNING}"
    return plane.kubectl("get", "pods", selector, "-o", "jsonpath={.items[*].metadata.name}").stdout


def explain_what_waits(plane: ControlPlane) -> None:
    """Scale beyond the GPUs of the cluster, read why, and scale back."""
    title(f"kubectl scale infd {RUNNING} --replicas=9: the cluster has eight such GPUs, and WHY says so")
    plane.kubectl("scale", "infd", RUNNING, "--replicas=9")
    message = '{.status.conditions[?(@.type=="Ready")].reason}: {.status.conditions[?(@.type=="Ready")].message}'

    def ready() -> str:
        return plane.kubectl("get", "infd", RUNNING, "-o", f"jsonpath={message}").stdout

    wait_until(lambda: ready().startswith("NotEnoughGpus"), "the condition Ready names the GPUs that are missing")
    say(plane.kubectl("get", "infd", RUNNING).stdout)
    say(ready())
    plane.kubectl("scale", "infd", RUNNING, "--replicas=2")
    wait_until(lambda: ready().startswith("ReplicasReady"), "two replicas are ready again")


def show_ledger() -> None:
    """Line by line, for people."""
    title("kvgate explain: the ledger of the GPU of qwen3-6-27b, and why a request takes 4.31 GiB and not 16")
    flags = "--vllm-version 0.33.0 --max-model-len 131072 --max-num-seqs 8 --kv-cache-dtype fp8 --gpu-memory-utilization 0.75"
    command = [KVGATE, "explain", "--model", "Qwen/Qwen3.6-27B-FP8", "--gpu", "H100-NVL-94GB", *flags.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    say(done.stdout + done.stderr)
    expect(done.returncode == 0, f"kvgate explain ended with {done.returncode}")


def show_metrics(port: int) -> None:
    """Print the metrics that Prometheus scrapes; the controller renews them once a second."""
    title(f"The controller's metrics (http://127.0.0.1:{port}/metrics)")
    rendered = ("llama-3-1-8b", "llama-3-1-70b", "qwen3-6-27b", "qwen3-32b", "qwen3-8b")
    wait_until(lambda: all(headroom_of(port, name) for name in rendered), "each one's headroom is scraped")
    shown = ("kvgate_kv_cache_headroom_bytes{", "kvgate_deployment_info{")
    say("\n".join(line for line in scrape(port).splitlines() if line.startswith(shown)))


def headroom_of(port: int, name: str) -> list[str]:
    """The samples of one object's headroom; empty before they are there."""
    samples = (line for line in scrape(port).splitlines() if line.startswith("kvgate_kv_cache_headroom_bytes{"))
    return [line for line in samples if f'inferencedeployment="{name}"' in line]


if __name__ == "__main__":
    sys.exit(main())
