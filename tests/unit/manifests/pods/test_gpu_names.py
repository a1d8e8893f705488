"""Names that people and clouds give to machines → the GPUs in them, and hardware that is none."""

from kvgate.manifests.pods.accelerator_hints import gpus_in, other_hardware_in
from support.tables import table


@table(
    ("name", "gpus"),
    [
        ("gpu-h100-80gb-high-x1", ["H100-SXM-80GB", "H100-PCIe-80GB"]),
        ("Tesla-A100-80G", ["A100-SXM-80GB", "A100-PCIe-80GB"]),
        ("gpu_1x_h100_pcie", ["H100-PCIe-80GB"]),
        ("gd-8xh100ib-i128", ["H100-SXM-80GB", "H100-PCIe-80GB", "H100-NVL-94GB"]),
        ("h100-80gb-sxm-ib.8x", ["H100-SXM-80GB"]),
        ("H100-1-80G", ["H100-SXM-80GB", "H100-PCIe-80GB"]),
        ("gpu-mi300x1-192gb", ["MI300X-192GB"]),
        ("gx3-24x120x1l40s", ["L40S-48GB"]),
        ("Standard_ND128isr_NDR_GB200_v6", ["GB200-192GB"]),
        ("VM.GPU.A100.B40G.1", ["A100-SXM-40GB", "A100-PCIe-40GB"]),
        ("rtx-4090", ["RTX-4090-24GB"]),
        ("RTX_A6000", ["RTX-A6000-48GB"]),
        ("rtxa6000", ["RTX-A6000-48GB"]),
        ("a100-40gb", ["A100-SXM-40GB", "A100-PCIe-40GB"]),
        ("a100-64gb", ["A100-SXM-40GB", "A100-PCIe-40GB", "A100-SXM-80GB", "A100-PCIe-80GB"]),
        ("h100-nvl", ["H100-NVL-94GB"]),
        ("rtx-pro-6000-server", ["RTX-PRO-6000-Server-96GB"]),
        ("standard_nv36ads_a10", ["A10-24GB"]),
        ("standard_nv6ads_a10", []),
        ("standard_nv18ads_a10", []),
        ("gr6f.4xlarge-l4", []),
        ("a100-1g.10gb", []),
        ("NVIDIA-H20-3e", []),
        ("a100-or-h100", []),
        ("gpu-large", []),
        ("accelerator-llama-3-1-8b", []),
        ("nvidia-l4-vgpu", []),
        ("mig-1g.10gb-a100", []),
        ("x" * 250 + "-l4", []),
    ],
)
def test_a_name_mentions_the_gpus_that_it_may_mean(name: str, gpus: list[str]) -> None:
    assert [each.name for each in gpus_in(name)] == gpus


@table(
    ("model", "gpus"),
    [
        ("gb300", "GB300-288GB"), ("gb200", "GB200-192GB"), ("gh200", "GH200-120GB GH200-480GB"), ("b300", "B300-SXM-288GB"),
        ("b200", "B200-SXM-180GB"), ("h800", "H800-SXM-80GB"), ("h200", "H200-SXM-141GB"), ("h20", "H20-SXM-96GB"),
        ("h100", "H100-SXM-80GB H100-PCIe-80GB H100-NVL-94GB"), ("a800", "A800-SXM-80GB"), ("a40", "A40-48GB"), ("a30", "A30-24GB"),
        ("a100", "A100-SXM-40GB A100-PCIe-40GB A100-SXM-80GB A100-PCIe-80GB"), ("a10g", "A10G-24GB"), ("a10", "A10-24GB"),
        ("l40s", "L40S-48GB"), ("l40", "L40-48GB"), ("l20", "L20-48GB"), ("l4", "L4-24GB"), ("t4", "T4-16GB"),
        ("v100", "V100-SXM-16GB V100-SXM-32GB V100-PCIe-16GB V100-PCIe-32GB"), ("mi355x", "MI355X-288GB"), ("mi350x", "MI350X-288GB"),
        ("mi325x", "MI325X-256GB"), ("mi300x", "MI300X-192GB"), ("mi250x", "MI250X-64GB"), ("mi210", "MI210-64GB"),
        ("rtx-pro-6000", "RTX-PRO-6000-Server-96GB RTX-PRO-6000-Workstation-96GB RTX-PRO-6000-Max-Q-96GB"), ("rtx-5090", "RTX-5090-32GB"),
        ("rtx-4090", "RTX-4090-24GB"), ("rtx-3090", "RTX-3090-24GB"), ("rtx-6000-ada", "RTX-6000-Ada-48GB"),
        ("rtx-a6000", "RTX-A6000-48GB"), ("rtx-a5000", "RTX-A5000-24GB"),
    ],
)  # fmt: skip
def test_every_model_is_known_in_every_style(model: str, gpus: str) -> None:
    styles = ("pool-{}-x2", "{}", "2x{}", "nvidia{}", "TESLA_{}", "gpu{}x4")
    assert {style: [each.name for each in gpus_in(style.format(model))] for style in styles} == dict.fromkeys(
        styles, gpus.split()
    )
    assert gpus_in(f"x{model}y") == ()


@table(
    ("name", "words"),
    [
        ("google.com/tpu", "a TPU"), ("tpu-v6e-slice", "a TPU"), ("ct5lp-hightpu-4t", "a TPU"), ("vllm/vllm-tpu:v0.13.2", "a TPU"),
        ("habana.ai/gaudi", "an Intel Gaudi"), ("opea/vllm-gaudi:latest", "an Intel Gaudi"), ("dl1.24xlarge", "an Intel Gaudi"),
        ("trn1.32xlarge", "AWS Neuron hardware"), ("inf2.48xlarge", "AWS Neuron hardware"),
        ("aws.amazon.com/neuroncore", "AWS Neuron hardware"), ("intel-gpu-max", "a GPU of Intel"), ("intel-xpu", "a GPU of Intel"),
        ("gpu.intel.com/xe", "a GPU of Intel"), ("x-i915", "a GPU of Intel"), ("ipex", "a GPU of Intel"),
        ("intel/vllm:1", "a GPU of Intel"),
        ("inferentia2", "AWS Neuron hardware"), ("trainium", "AWS Neuron hardware"), ("hpu", "an Intel Gaudi"),
        ("npu", "a Huawei Ascend NPU"),
        ("rbln", "a Rebellions NPU"), ("qualcomm.com/qaic", "an accelerator of another vendor"),
        ("iluvatar.ai/gpu", "an accelerator of another vendor"), ("cambricon.com/vmlu", "an accelerator of another vendor"),
        ("metax-tech.com/gpu", "an accelerator of another vendor"), ("enflame.com/gcu", "an accelerator of another vendor"),
        ("hygon.com/dcu", "an accelerator of another vendor"), ("mthreads.com/gpu", "an accelerator of another vendor"),
        ("kunlunxin.com/xpu", "a GPU of Intel"), ("huawei.com/Ascend910B3", "a Huawei Ascend NPU"),
        ("quay.io/ascend/vllm-ascend:v0.9.1", "a Huawei Ascend NPU"), ("rebellions.ai/ATOM", "a Rebellions NPU"),
        ("nvidia.com/gpu", ""), ("amd.com/gpu", ""), ("vllm/vllm-openai:v0.32.0", ""), ("input", ""), ("info1", ""),
    ],
)  # fmt: skip
def test_hardware_that_is_no_gpu_of_ours_is_named(name: str, words: str) -> None:
    assert other_hardware_in(name) == words
