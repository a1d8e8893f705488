"""Model classes with sliding windows, chunks and layers that differ in their attention."""

from kvgate.hf_config.family import Family

WINDOW_FAMILIES: dict[str, Family] = {}
"""One row per class."""
