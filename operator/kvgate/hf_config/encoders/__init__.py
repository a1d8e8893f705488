"""Vision and audio towers: which class has which, and what their weights are."""

from kvgate.hf_config.family import EncoderReader

LANGUAGE_MODELS: dict[str, str] = {}
"""Multimodal class → the class of its language model."""

ENCODERS: dict[str, EncoderReader] = {}
"""Multimodal class → the reader of its towers."""
