"""Names are found the way people and drivers write them."""

from kvgate import catalogue
from support.tables import table

LOGGED = {
    "NVIDIA A100-SXM4-80GB": (79.25, (8, 0)),
    "NVIDIA B300 SXM6 AC": (267.69, (10, 3)),
    "NVIDIA GB10": (121.69, (12, 1)),
    "NVIDIA GeForce RTX 4070 Laptop GPU": (7.99, (8, 9)),
    "NVIDIA GeForce RTX 5090 Laptop GPU": (23.9, (12, 0)),
    "NVIDIA GeForce RTX 5090": (31.36, (12, 0)),
    "NVIDIA H100 80GB HBM3": (79.19, (9, 0)),
    "NVIDIA H100 NVL": (93.1, (9, 0)),
    "NVIDIA H200": (139.81, (9, 0)),
    "NVIDIA Jetson AGX Orin": (61.4, (8, 7)),
    "NVIDIA Jetson AGX Thor": (122.8, (11, 0)),
    "NVIDIA L40S": (44.42, (8, 9)),
    "NVIDIA RTX 6000D": (83.05, (12, 0)),
    "NVIDIA RTX PRO 4500 Blackwell Server Edition": (31.38, (12, 0)),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": (95.09, (12, 0)),
    "Tesla T4": (14.74, (7, 5)),
    "Tesla V100-SXM2-32GB": (31.73, (7, 0)),
    "AMD Instinct MI50 32GB": (31.98, None),
    "AMD Instinct MI300X": (191.98, None),
    "AMD Radeon 8060S": (80.0, None),
    "AMD Radeon AI PRO R9700": (31.86, None),
    "Intel Arc Pro B60": (22.71, None),
}
"""The driver's name → GiB as vLLM's start-up log rounds them, and the compute capability."""


@table("name", LOGGED)
def test_a_driver_s_name_finds_the_memory_that_servers_log(name: str) -> None:
    accelerator, (gib, capability) = catalogue.find_accelerator(name), LOGGED[name]
    assert accelerator is not None
    assert accelerator.memory_low_bytes / 2**30 - 0.005 <= gib <= accelerator.memory_high_bytes / 2**30 + 0.005
    assert accelerator.compute_capability == capability


def test_every_accelerator_is_found_by_each_of_its_names() -> None:
    named = [(name, a) for a in catalogue.accelerators() for name in (a.name, a.product.upper(), *a.gpu_labels)]
    assert [name for name, accelerator in named if catalogue.find_accelerator(f" {name} ") is not accelerator] == []


def test_every_model_is_found_by_its_aliases() -> None:
    entries = [catalogue.load_model(name) for name in catalogue.model_names()]
    named = [(name, entry) for entry in entries for name in (entry.name, *entry.aliases)]
    assert len(named) > len(entries)
    assert [name for name, entry in named if catalogue.find_model(name.upper()) is not entry] == []


def test_a_fine_tune_is_made_from_a_model_of_the_catalogue_and_is_none_itself() -> None:
    listed = catalogue.fine_tunes()
    assert {model for model in listed.values() if catalogue.find_model(model) is None} == set()
    assert {name.rpartition("/")[2] for name in catalogue.model_names()}.isdisjoint(listed)
