"""Names that people and clouds give to machines → the GPUs in them, and hardware that is none."""

import pytest

from kvgate.manifests.pods.gpu_names import gpus_in, other_hardware_in


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("google.com/tpu", "a TPU"), ("tpu-v6e-slice", "a TPU"), ("ct5lp-hightpu-4t", "a TPU"), ("vllm/vllm-tpu:v0.13.2", "a TPU"),
        ("habana.ai/gaudi", "an Intel Gaudi"), ("opea/vllm-gaudi:latest", "an Intel Gaudi"), ("dl1.24xlarge", "an Intel Gaudi"),
        ("trn1.32xlarge", "AWS Neuron hardware"), ("inf2.48xlarge", "AWS Neuron hardware"),
        ("aws.amazon.com/neuroncore", "AWS Neuron hardware"), ("intel-gpu-max", "a GPU of Intel"), ("intel-xpu", "a GPU of Intel"),
        ("gpu.intel.com/xe", "a GPU of Intel"), ("huawei.com/Ascend910B3", "a Huawei Ascend NPU"),
        ("quay.io/ascend/vllm-ascend:v0.9.1", "a Huawei Ascend NPU"), ("rebellions.ai/ATOM", "a Rebellions NPU"),
        ("nvidia.com/gpu", ""), ("amd.com/gpu", ""), ("vllm/vllm-openai:v0.32.0", ""), ("input", ""), ("info1", ""),
    ],
)  # fmt: skip
def test_hardware_that_is_no_gpu_of_ours_is_named(name: str, words: str) -> None:
    assert other_hardware_in(name) == words
