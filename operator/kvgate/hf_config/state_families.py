"""Model classes with layers that keep a recurrent state Mamba 1 and 2, GDN, KDA, linear attention, short convolution."""

from kvgate.hf_config.family import Family

STATE_FAMILIES: dict[str, Family] = {}
"""One row per class."""
