"""Models, accelerators and prices that kvgate knows, each with its source and date."""

from kvgate.catalogue.lookup import (
    accelerators,
    accelerators_meant,
    driver_memory_mib,
    every_accelerator,
    find_accelerator,
    nearest_accelerators,
)
from kvgate.catalogue.models import (
    ModelClass,
    ModelEntry,
    draft_names,
    find_draft,
    find_model,
    find_model_class,
    fine_tunes,
    is_quantised,
    load_model,
    model_names,
    names_and_aliases,
    nearest_drafts,
    nearest_models,
    with_quantization,
)

__all__ = [
    "ModelClass",
    "ModelEntry",
    "accelerators",
    "accelerators_meant",
    "draft_names",
    "driver_memory_mib",
    "every_accelerator",
    "find_accelerator",
    "find_draft",
    "find_model",
    "find_model_class",
    "fine_tunes",
    "is_quantised",
    "load_model",
    "model_names",
    "names_and_aliases",
    "nearest_accelerators",
    "nearest_drafts",
    "nearest_models",
    "with_quantization",
]
