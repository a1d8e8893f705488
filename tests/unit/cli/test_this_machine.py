"""`--gpu auto`: outputs of the vendors' programs as public pages show them, and a program that prints one."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvgate.cli.gpu_names import read_gpus
from kvgate.cli.main import main
from kvgate.cli.this_machine import Device, of_amd_smi, of_nvidia_list, of_nvidia_table, of_rocm_smi
from kvgate.vllm.values import UnusableValue

MIB = 1 << 20
SLICES_OF_H200 = """\
GPU 4: NVIDIA H200 (UUID: GPU-31f70a1b-dee6-617e-13c5-5c2a2fbe0013)
  MIG 1g.35gb  Device 0: (UUID: MIG-e26b1e11-8424-5ef0-97a8-d87e519f7824)
  MIG 1g.35gb  Device 1: (UUID: MIG-1a7d7808-5dcc-50fa-842c-2ceaa9f6e8ee)
"""
"""`nvidia-smi -L` of a board that is cut, from a public guide to MIG under MPI, read on 2026-11-28."""
WHOLE_H200 = "GPU 0: NVIDIA H200 (UUID: GPU-31f70a1b-dee6-617e-13c5-5c2a2fbe0013)\n"
MI300X_OF_AMD_SMI = """{"gpu_data": [{"gpu": 0,
 "asic": {"market_name": "AMD Instinct MI300X", "vendor_id": "0x1002", "device_id": "0x74a1", "target_graphics_version": "gfx942"},
 "vram": {"type": "HBM3", "size": {"value": 196592, "unit": "MB"}}}]}"""
"""`amd-smi static --asic --vram --json` of ROCm 10.1; below of older releases: as tests of public tools have them, read on 2026-11-28."""
OLDER_AMD_SMI = """WARNING: User is missing the following required groups
[{"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X"}, "vram": {"size": {"value": 196608, "unit": "MB"}}},
 {"gpu": 3, "asic": {"market_name": "AMD Radeon PRO W7800"}, "vram": {"size": {"value": 34359738368, "unit": "B"}}}]"""
RX_7900_XT_OF_ROCM_SMI = """{"card0": {"GPU use (%)": "0", "VRAM Total Memory (B)": "21458059264",
 "VRAM Total Used Memory (B)": "27856896", "Card Series": "Radeon RX 7900 XT", "Card Model": "0x744c", "GFX Version": "gfx1100"},
 "card1": {"VRAM Total Memory (B)": "67108864", "Card Series": "Raphael", "Card Model": "0x164e"},
 "system": {"Driver version": "6.8.0"}}"""
"""`rocm-smi --showproductname --showmeminfo vram --json`: marimo-team/marimo#9237; the graphics of a CPU: mudler/LocalAI#7761."""


def test_slices_are_read_with_their_board_and_whole_boards_from_the_table() -> None:
    assert list(of_nvidia_list(SLICES_OF_H200)) == [Device(product="NVIDIA H200 MIG 1g.35gb")] * 2
    assert list(of_nvidia_list(WHOLE_H200)) == []
    table = "NVIDIA GeForce RTX 4090, 24564\nNVIDIA GB10, [N/A]\n"
    assert list(of_nvidia_table(table)) == [
        Device(product="NVIDIA GeForce RTX 4090", memory_bytes=24564 * MIB),
        Device(product="NVIDIA GB10"),
    ]
    assert list(of_nvidia_table("No devices were found\n")) == []


def test_both_programs_of_amd_are_read() -> None:
    assert list(of_amd_smi(MI300X_OF_AMD_SMI)) == [Device(product="AMD Instinct MI300X", memory_bytes=196592 * MIB)]
    assert [each.memory_bytes for each in of_amd_smi(OLDER_AMD_SMI)] == [196608 * MIB, 32 << 30]
    assert list(of_rocm_smi(RX_7900_XT_OF_ROCM_SMI)) == [Device(product="Radeon RX 7900 XT", memory_bytes=21458059264)]
    assert list(of_amd_smi("Segmentation fault")) == list(of_rocm_smi("")) == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the only folder of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def prints(folder: Path, name: str, answers: dict[str, str], code: int = 0) -> None:
    """Write a program that prints the answer to its first argument."""
    path = folder / name
    path.write_text(
        f"#!{sys.executable} -S\nimport sys\nprint({answers!r}.get(sys.argv[1], ''), end='')\nsys.exit({code})\n"
    )
    path.chmod(0o755)


ROWS = {
    "4090": ("NVIDIA GeForce RTX 4090, 24564\n" * 2, [("RTX-4090-24GB", 2, None)]),
    "two kinds": (
        "NVIDIA L4, 23034\nTesla T4, 15360\nNVIDIA L4, 23034\n",
        [("L4-24GB", 2, None), ("T4-16GB", 1, None)],
    ),
    "one name, two sizes": ("NVIDIA GeForce RTX 3060, 12288\n", [("RTX-3060-12GB", 1, None)]),
    "the other size": ("NVIDIA GeForce RTX 3060, 8192\n", [("RTX-3060-8GB", 1, None)]),
    "memory that is doubled": ("NVIDIA GeForce RTX 4090, 49140\n", [("RTX-4090-24GB", 1, 48637 * MIB)]),
    "memory that checks itself": ("NVIDIA RTX A5000, 23028\n", [("RTX-A5000-24GB", 1, 22574 * MIB)]),
    "unified memory": ("NVIDIA GB10, [N/A]\n", [("GB10-128GB", 1, None)]),
    "a new board": ("NVIDIA R200, 294912\n", [("NVIDIA R200", 1, 293942 * MIB)]),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_gpus_of_this_machine_are_counted(folder: Path, name: str) -> None:
    table, expected = ROWS[name]
    prints(folder, "nvidia-smi", {"--query-gpu=name,memory.total": table})
    found = [(each.names[0], each.count, each.memory_bytes) for each in read_gpus("auto") if len(each.names) == 1]
    assert found == expected


def test_the_program_that_finds_a_gpu_answers(folder: Path) -> None:
    prints(folder, "nvidia-smi", {"-L": "NVIDIA-SMI has failed"}, code=9)
    prints(folder, "amd-smi", {"static": MI300X_OF_AMD_SMI})
    assert [each.names for each in read_gpus("auto")] == [("MI300X-192GB",)]
    (folder / "amd-smi").unlink()
    prints(folder, "rocm-smi", {"--showproductname": RX_7900_XT_OF_ROCM_SMI})
    assert [each.names for each in read_gpus("Auto")] == [("RX-7900-XT-20GB",)]
    prints(folder, "nvidia-smi", {"-L": SLICES_OF_H200})
    (choice,) = read_gpus("auto")
    assert (choice.names, choice.count) == (("H200-MIG-1g.35gb",), 2)


def test_a_machine_without_gpus_is_told_so(folder: Path) -> None:
    assert not list(folder.iterdir())
    with pytest.raises(
        UnusableValue, match="neither nvidia-smi nor amd-smi nor rocm-smi finds a GPU on this machine; name the GPU"
    ):
        read_gpus("auto")


def test_a_verdict_for_this_machine_says_what_it_has(folder: Path) -> None:
    prints(folder, "nvidia-smi", {"--query-gpu=name,memory.total": "NVIDIA L40S, 46068\n" * 4})
    result = CliRunner().invoke(main, ["explain", "--model", "Qwen/Qwen3-8B", "--gpu", "auto", "--tp", "2"])
    assert "on 2 × L40S-48GB" in result.stdout
    assert result.stderr == "--gpu auto, NVIDIA L40S: 4 × L40S-48GB; the engine uses 2\n"
