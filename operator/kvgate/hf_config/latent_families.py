"""Model classes with sparse and compressed latent attention."""

from kvgate.hf_config.family import Family

LATENT_FAMILIES: dict[str, Family] = {}
"""One row per class."""
