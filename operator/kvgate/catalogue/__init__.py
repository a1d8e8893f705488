"""Models, accelerators and prices that kvgate knows, each with its source and date."""

from kvgate.catalogue.lookup import (
    ModelClass,
    ModelEntry,
    accelerators,
    accelerators_meant,
    draft_names,
    driver_memory_mib,
    find_accelerator,
    find_draft,
    find_model,
    find_model_class,
    load_model,
    model_names,
    nearest_accelerators,
    nearest_drafts,
    nearest_models,
)

__all__ = [
    "ModelClass",
    "ModelEntry",
    "accelerators",
    "accelerators_meant",
    "draft_names",
    "driver_memory_mib",
    "find_accelerator",
    "find_draft",
    "find_model",
    "find_model_class",
    "load_model",
    "model_names",
    "nearest_accelerators",
    "nearest_drafts",
    "nearest_models",
]
