"""Names that people use for GPUs, machines and numbers of them, and what `--gpu` makes of them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvgate import catalogue
from kvgate.catalogue.gpu_names import gpus_meant
from kvgate.cli.gpu_names import on_one_gpu, read_gpus
from kvgate.cli.main import main
from kvgate.vllm.values import UnusableValue
from support.tables import table

H100 = "H100-SXM-80GB H100-PCIe-80GB H100-NVL-94GB H100-SXM-64GB H100-SXM-96GB"
NAMES = """
4090: RTX-4090-24GB
RTX 4090: RTX-4090-24GB
rtx4090: RTX-4090-24GB
RTX-4090: RTX-4090-24GB
GeForce RTX 4090: RTX-4090-24GB
NVIDIA GeForce RTX 4090: RTX-4090-24GB
NVIDIA-GeForce-RTX-4090: RTX-4090-24GB
RTX 4090 24GB: RTX-4090-24GB
4090 D: RTX-4090-D-24GB
4090 laptop: RTX-4090-Laptop-16GB
RTX 4090 48GB: RTX-4090-48GB
3090: RTX-3090-24GB
3090 Ti: RTX-3090-Ti-24GB
3060: RTX-3060-12GB RTX-3060-8GB
RTX 3060: RTX-3060-12GB RTX-3060-8GB
NVIDIA GeForce RTX 3060: RTX-3060-12GB RTX-3060-8GB
RTX 3060 12GB: RTX-3060-12GB
rtx 3060 8gb: RTX-3060-8GB
3060 ti: RTX-3060-Ti-8GB
3060 Laptop: RTX-3060-Laptop-6GB
3070: RTX-3070-8GB
3070 Ti: RTX-3070-Ti-8GB
3080: RTX-3080-10GB RTX-3080-12GB
NVIDIA GeForce RTX 3080: RTX-3080-10GB RTX-3080-12GB
3080 Ti: RTX-3080-Ti-12GB
3080 laptop: RTX-3080-Laptop-8GB RTX-3080-Laptop-16GB
3050: RTX-3050-8GB RTX-3050-6GB
4060: RTX-4060-8GB
4060 Ti: RTX-4060-Ti-16GB RTX-4060-Ti-8GB
NVIDIA GeForce RTX 4060 Ti: RTX-4060-Ti-16GB RTX-4060-Ti-8GB
4060Ti 16GB: RTX-4060-Ti-16GB
4070: RTX-4070-12GB
4070 Super: RTX-4070-SUPER-12GB
4070 Ti: RTX-4070-Ti-12GB
4070 Ti Super: RTX-4070-Ti-SUPER-16GB
RTX 4070 Laptop GPU: RTX-4070-Laptop-8GB
4080: RTX-4080-16GB
4080 Super: RTX-4080-SUPER-16GB
5050: RTX-5050-8GB
5060: RTX-5060-8GB
5060 Ti: RTX-5060-Ti-16GB RTX-5060-Ti-8GB
5070: RTX-5070-12GB
5070 Ti: RTX-5070-Ti-16GB
5080: RTX-5080-16GB
5090: RTX-5090-32GB
5090 D: RTX-5090-D-32GB
5090 d v2: RTX-5090-D-V2-24GB
5090 Laptop: RTX-5090-Laptop-24GB
2060: RTX-2060-12GB RTX-2060-6GB
2060 Super: RTX-2060-SUPER-8GB
2070: RTX-2070-8GB
2080: RTX-2080-8GB
2080 Ti: RTX-2080-Ti-11GB
2080ti: RTX-2080-Ti-11GB
1660 Super: GTX-1660-SUPER-6GB
Titan RTX: TITAN-RTX-24GB
TITAN V: TITAN-V-12GB
Quadro RTX 4000: Quadro-RTX-4000-8GB
Quadro RTX 5000: Quadro-RTX-5000-16GB
Quadro RTX 6000: Quadro-RTX-6000-24GB
RTX 8000: Quadro-RTX-8000-48GB
GV100: Quadro-GV100-32GB
A2: A2-16GB
NVIDIA A2: A2-16GB
A10: A10-24GB
A10G: A10G-24GB
a10g: A10G-24GB
A16: A16-16GB
A30: A30-24GB
A40: A40-48GB
A100: A100-SXM-40GB A100-PCIe-40GB A100-SXM-80GB A100-PCIe-80GB A100-SXM-64GB
A100 80GB: A100-SXM-80GB
A100-40GB: A100-SXM-40GB
a100 pcie: A100-PCIe-40GB A100-PCIe-80GB
A100 40GB PCIe: A100-PCIe-40GB
A100 80GB PCIe: A100-PCIe-80GB
A100-SXM4-80GB: A100-SXM-80GB
NVIDIA A100-SXM4-40GB: A100-SXM-40GB
NVIDIA-A100-80GB-PCIe: A100-PCIe-80GB
A800: A800-SXM-80GB
A2000: RTX-A2000-12GB RTX-A2000-6GB
NVIDIA RTX A2000 12GB: RTX-A2000-12GB
A4000: RTX-A4000-16GB
A4500: RTX-A4500-20GB
A5000: RTX-A5000-24GB
A5500: RTX-A5500-24GB
A6000: RTX-A6000-48GB
RTX A6000: RTX-A6000-48GB
RTX 2000 Ada: RTX-2000-Ada-16GB
RTX 4000 Ada: RTX-4000-Ada-20GB
RTX 4000 SFF Ada: RTX-4000-SFF-Ada-20GB
RTX 4500 Ada: RTX-4500-Ada-24GB
RTX 5000 Ada: RTX-5000-Ada-32GB
RTX 5880 Ada: RTX-5880-Ada-48GB
6000 Ada: RTX-6000-Ada-48GB
NVIDIA RTX 6000 Ada Generation: RTX-6000-Ada-48GB
RTX 6000: Quadro-RTX-6000-24GB RTX-6000-Ada-48GB RTX-PRO-6000-Server-96GB RTX-PRO-6000-Workstation-96GB RTX-PRO-6000-Max-Q-96GB
RTX PRO 2000: RTX-PRO-2000-16GB
RTX PRO 4000 Blackwell: RTX-PRO-4000-24GB
RTX PRO 4000 SFF: RTX-PRO-4000-SFF-24GB
RTX PRO 4500: RTX-PRO-4500-32GB
RTX PRO 5000: RTX-PRO-5000-48GB
NVIDIA RTX PRO 5000 72GB Blackwell: RTX-PRO-5000-72GB
RTX PRO 6000: RTX-PRO-6000-Server-96GB RTX-PRO-6000-Workstation-96GB RTX-PRO-6000-Max-Q-96GB
PRO 6000 Max-Q: RTX-PRO-6000-Max-Q-96GB
NVIDIA RTX PRO 6000 Blackwell Server Edition: RTX-PRO-6000-Server-96GB
L4: L4-24GB
nvidia-l4: L4-24GB
L20: L20-48GB
L40: L40-48GB
L40G: L40G-24GB
L40S: L40S-48GB
H20: H20-SXM-96GB
H20-3e: H20-SXM-141GB
H100: H100-SXM-80GB H100-PCIe-80GB H100-NVL-94GB H100-SXM-64GB H100-SXM-96GB
h100 pcie: H100-PCIe-80GB
h100pcie: H100-PCIe-80GB
H100 SXM: H100-SXM-80GB
H100 SXM5 80GB: H100-SXM-80GB
H100 NVL: H100-NVL-94GB
NVIDIA H100 80GB HBM3: H100-SXM-80GB
NVIDIA-H100-80GB-HBM3: H100-SXM-80GB
H100 96GB: H100-SXM-96GB
H200: H200-SXM-141GB
H200 NVL: H200-NVL-141GB
H800: H800-SXM-80GB
GH200: GH200-120GB GH200-480GB GH200-144GB
NVIDIA GH200 480GB: GH200-480GB
B200: B200-SXM-180GB
B300: B300-SXM-288GB
GB200: GB200-192GB
GB300: GB300-288GB
GB10: GB10-128GB
DGX Spark: GB10-128GB
Jetson Orin Nano: Jetson-Orin-Nano-8GB
Jetson AGX Orin: Jetson-AGX-Orin-64GB
Jetson AGX Thor: Jetson-AGX-Thor-128GB
T4: T4-16GB
Tesla T4: T4-16GB
nvidia-tesla-t4: T4-16GB
T4G: T4G-16GB
V100 16GB: V100-SXM-16GB
V100 32GB: V100-SXM-32GB
Tesla V100-PCIE-32GB: V100-PCIe-32GB
V100S: V100S-PCIe-32GB
MI60: MI60-32GB
MI100: MI100-32GB
MI210: MI210-64GB
MI250X: MI250X-64GB
MI300: MI300X-192GB MI300A-128GB
MI300X: MI300X-192GB
AMD Instinct MI300X: MI300X-192GB
AMD_Instinct_MI300X_OAM: MI300X-192GB
MI300A: MI300A-128GB
MI308X: MI308X-192GB
MI325X: MI325X-256GB
MI350X: MI350X-288GB
MI355X: MI355X-288GB
7900 XTX: RX-7900-XTX-24GB
RX 7900 XTX: RX-7900-XTX-24GB
7900 xt: RX-7900-XT-20GB
RX 7900: RX-7900-XT-20GB RX-7900-XTX-24GB RX-7900-GRE-16GB
7800 XT: RX-7800-XT-16GB
9060 XT: RX-9060-XT-16GB RX-9060-XT-8GB
9070: RX-9070-16GB
9070 XT: RX-9070-XT-16GB
W7900: W7900-48GB
R9700: R9700-32GB
Strix Halo: 8060S-128GB
MIG 3g.20gb: A100-40GB-MIG-3g.20gb
1g.10gb: A100-80GB-MIG-1g.10gb H100-80GB-MIG-1g.10gb
H100 1g.10gb: H100-80GB-MIG-1g.10gb
H200 MIG 1g.35gb: H200-MIG-1g.35gb
A30 MIG 2g.12gb: A30-MIG-2g.12gb
NVIDIA B200 MIG 1g.23gb: B200-MIG-1g.23gb
"""
"""Name: the accelerators that it means, as a careful reader of the vendors' pages would say."""


@table(("name", "meant"), lambda: [line.split(": ") for line in NAMES.strip().splitlines()])
def test_a_name_means_the_gpus_that_people_mean(name: str, meant: str) -> None:
    assert [each.name for each in gpus_meant(name)] == meant.split()
    (choice,) = read_gpus(name)
    assert (" ".join(choice.names), choice.count) == (meant, None)


def test_the_table_of_names_is_long_and_every_accelerator_is_found_by_each_of_its_names() -> None:
    assert len(NAMES.strip().splitlines()) >= 150
    shared = {"NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 4060 Ti", "NVIDIA GeForce RTX 5060 Ti", "NVIDIA GeForce RTX 2060",
              "NVIDIA GeForce RTX 3050", "NVIDIA RTX A2000", "NVIDIA-GeForce-RTX-2060", "NVIDIA-RTX-A2000"}  # fmt: skip
    wrong = [
        (name, accelerator.name)
        for accelerator in catalogue.every_accelerator()
        for name in (accelerator.name, accelerator.product, *accelerator.gpu_labels)
        if name not in shared and gpus_meant(name) != (accelerator,)
    ]
    assert wrong == []


COUNTED = {
    "4xA100-80GB": (4, "A100-SXM-80GB"),
    "2x L40S": (2, "L40S-48GB"),
    "8 × H100": (8, H100),
    "8*H200": (8, "H200-SXM-141GB"),
    "H100x8": (8, H100),
    "H100 x8": (8, H100),
    "A100-80GB:4": (4, "A100-SXM-80GB"),
    "RTX 2060 x 2": (2, "RTX-2060-12GB RTX-2060-6GB"),
    "2x7900 XTX": (2, "RX-7900-XTX-24GB"),
    "7900 XTX x2": (2, "RX-7900-XTX-24GB"),
    "MI300X (8x)": (8, "MI300X-192GB"),
    "g4dn.xlarge": (1, "T4-16GB"),
    "g4dn.12xlarge": (4, "T4-16GB"),
    "g5.12xlarge": (4, "A10G-24GB"),
    "g5.48xlarge": (8, "A10G-24GB"),
    "g5g.16xlarge": (2, "T4G-16GB"),
    "g6.xlarge": (1, "L4-24GB"),
    "g6e.24xlarge": (4, "L40S-48GB"),
    "g7e.12xlarge": (2, "RTX-PRO-6000-Server-96GB"),
    "p3.16xlarge": (8, "V100-SXM-16GB"),
    "p3dn.24xlarge": (8, "V100-SXM-32GB"),
    "p4d.24xlarge": (8, "A100-SXM-40GB"),
    "p4de.24xlarge": (8, "A100-SXM-80GB"),
    "p5.4xlarge": (1, "H100-SXM-80GB"),
    "p5.48xlarge": (8, "H100-SXM-80GB"),
    "P5EN.48XLARGE": (8, "H200-SXM-141GB"),
    "p6-b200.48xlarge": (8, "B200-SXM-180GB"),
    "a2-highgpu-1g": (1, "A100-SXM-40GB"),
    "a2-highgpu-8g": (8, "A100-SXM-40GB"),
    "a2-megagpu-16g": (16, "A100-SXM-40GB"),
    "a2-ultragpu-4g": (4, "A100-SXM-80GB"),
    "a3-highgpu-8g": (8, "H100-SXM-80GB"),
    "a3-ultragpu-8g": (8, "H200-SXM-141GB"),
    "a4-highgpu-8g": (8, "B200-SXM-180GB"),
    "a4x-highgpu-4g": (4, "GB200-192GB"),
    "g2-standard-24": (2, "L4-24GB"),
    "g4-standard-96": (2, "RTX-PRO-6000-Server-96GB"),
    "Standard_ND96isr_H100_v5": (8, "H100-SXM-80GB"),
    "ND96isr_H100_v5": (8, "H100-SXM-80GB"),
    "Standard_NC24ads_A100_v4": (1, "A100-PCIe-80GB"),
    "Standard_NC64as_T4_v3": (4, "T4-16GB"),
    "ND96isr_MI300X_v5": (8, "MI300X-192GB"),
    "BM.GPU.H100.8": (8, "H100-SXM-80GB"),
    "VM.GPU.A10.2": (2, "A10-24GB"),
    "BM.GPU.MI300X.8": (8, "MI300X-192GB"),
    "ecs.gn7i-c8g1.2xlarge": (None, "A10-24GB"),
    "nvidia-h100-mega-80gb": (None, "H100-SXM-80GB"),
    "A100_NVLINK_80GB": (None, "A100-SXM-80GB"),
}
"""Number of GPUs or machine → (GPUs, accelerators), as the clouds document them."""


@pytest.mark.parametrize("text", COUNTED)
def test_a_number_and_a_machine_say_how_many_gpus_there_are(text: str) -> None:
    (choice,) = read_gpus(text)
    assert (choice.count, " ".join(choice.names)) == COUNTED[text]


@pytest.mark.parametrize("text", ["24GB", "24 GiB", "24g"])
def test_a_size_means_all_boards_of_this_size(text: str) -> None:
    (choice,) = read_gpus(text)
    assert {"A10-24GB", "L4-24GB", "RTX-4090-24GB", "RX-7900-XTX-24GB"} < set(choice.names)
    assert all(name.endswith("-24GB") and "MIG" not in name for name in choice.names)


REFUSED = {
    "K80": "compute capability 3.7",
    "M60": "compute capability 5.2",
    "RX 6800 XT": "no kernels for gfx103x (RDNA2), which RX 6800 XT is",
    "MI25": "no kernels for gfx906 or older",
    "tpu-v5e": "it is a TPU, which kvgate does not judge",
    "trn1.32xlarge": "it is AWS Neuron hardware, which kvgate does not judge",
    "0xL4": "write at least one GPU, such as 8xL4",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_vllm_does_not_run_on_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(UnusableValue) as told:
        read_gpus(text)
    assert f"--gpu {text}" in str(told.value) or "--gpu says" in str(told.value)
    assert REFUSED[text] in str(told.value)


def run(command: str, *arguments: str) -> tuple[str, str, int]:
    result = CliRunner().invoke(main, [command, "--model", "Qwen/Qwen3-8B", "--vllm-version", "0.33.0", *arguments])
    return result.stdout, result.stderr, result.exit_code


def test_a_name_of_several_is_answered_for_all_of_them_in_one_table() -> None:
    shown, _, code = run("explain", "--gpu", "V100", "--dtype", "half", "--context", "8k", "--users", "4")
    rows = [line.split() for line in shown.splitlines() if line.startswith("  V100-")]
    assert [row[0] for row in rows] == [each.name for each in gpus_meant("V100")]
    assert {row[0]: row[3] for row in rows}["V100-SXM-32GB"] == "Fits"
    assert {row[0]: row[3] for row in rows}["V100-SXM-16GB"] == "DoesNotFit"
    assert shown.startswith("Fits: full context (4 requests of 8000 tokens) fits on V100-SXM-32GB")
    assert code == 0


def test_none_of_several_is_a_refusal_that_says_so() -> None:
    shown, _, code = run("explain", "--gpu", "3060", "--context", "32k")
    assert code == 1
    assert "none of these GPUs holds it; on RTX-3060-12GB, the largest" in shown


def test_the_answer_for_programs_has_the_verdict_on_each() -> None:
    shown, _, _ = run("explain", "--gpu", "H100", "-o", "json")
    record = json.loads(shown)
    assert [each["name"] for each in record["engine"]["accelerators"]] == H100.split()
    assert (record["verdict"], record["engine"]["accelerator"]) == ("Fits", None)


def test_a_number_of_gpus_is_the_tensor_parallel_size_where_no_parallel_size_is_typed() -> None:
    shown, told, _ = run("explain", "--gpu", "2xL40S")
    assert "on 2 × L40S-48GB" in shown
    assert told == "--gpu 2xL40S: 2 × L40S-48GB; tensor_parallel_size is 2, because no parallel size is given\n"
    shown, told, _ = run("explain", "--gpu", "4xL40S", "--tp", "2")
    assert "on 2 × L40S-48GB" in shown
    assert told == ""


def test_a_machine_may_have_more_gpus_than_are_used_and_not_fewer() -> None:
    shown, told, _ = run("explain", "--gpu", "g5.12xlarge")
    assert "Qwen/Qwen3-8B on A10G-24GB" in shown
    assert told == "--gpu g5.12xlarge: 4 × A10G-24GB; the engine uses 1\n"
    assert (
        run("explain", "--gpu", "g5.12xlarge", "-tp", "8")[1] == "--gpu g5.12xlarge: 4 × A10G-24GB; the engine uses 8\n"
    )


def test_an_unknown_gpu_is_answered_with_the_nearest_and_with_its_memory() -> None:
    shown, told, code = run("explain", "--gpu", "H1000")
    assert shown.startswith("Unknown")
    assert told.startswith("--gpu H1000 is no GPU of the catalogue; write H100-SXM-80GB or ")
    assert told.endswith("or give its memory: --gpu-memory-bytes 12Gi\n")
    assert code == 2
    assert run("explain", "--gpu", ",")[2] == 2
    assert "give its memory: --gpu-memory-bytes 22Gi" in run("explain", "--gpu", "22GB")[1]
    shown, told, _ = run("explain", "--gpu", "H1000", "--gpu-memory-bytes", "100Gi")
    assert "  GPU memory              100.00 GiB" in shown
    assert told == ""


def test_every_command_has_the_same_names_for_the_option() -> None:
    answers = {run("explain", option, "L40S")[0] for option in ("--gpu", "--gpus", "--accelerator")}
    assert len(answers) == 1
    assert len({run("size", option, "L40S")[0] for option in ("--gpu", "--gpus", "--accelerator")}) == 1
    assert "L40S-48GB" in run("sweep", "--accelerator", "l40s", "--at", "8192,4")[0]


def test_a_sweep_needs_one_gpu() -> None:
    _, told, code = run("sweep", "--gpu", "H100")
    assert f"--gpu H100 may be {H100.replace(' ', ', ')}; name the one that it is" in told
    assert code == 2
    assert on_one_gpu({"gpu": "l4"}) == {"gpu": "L4-24GB"}
    with pytest.raises(UnusableValue, match="L4-24GB, T4-16GB"):
        on_one_gpu({"gpu": "L4,T4"})


POD = """\
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.33.0
    args: ["--model", "Qwen/Qwen3-32B", "--max-model-len", "8192"]
    resources: {limits: {nvidia.com/gpu: 1}}
"""


@pytest.mark.parametrize(
    ("gpu", "verdict", "code"),
    [
        ("h100", "Fits", 0),
        ("A100", "MayNotFit", 0),
        ("4090", "DoesNotFit", 1),
        ("g5.12xlarge", "DoesNotFit", 1),
        ("V100", "DoesNotFit", 1),
    ],
)
def test_a_manifest_is_judged_on_what_a_name_means_and_refused_only_where_none_holds_it(
    tmp_path: Path, gpu: str, verdict: str, code: int
) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    result = CliRunner().invoke(main, ["check", str(tmp_path / "pod.yaml"), "--gpu", gpu, "-o", "json"])
    (document,) = json.loads(result.stdout)["documents"]
    assert (document["verdict"], result.exit_code) == (verdict, code)
