"""Model class → how it is read: one row per class, by the kind of its layers."""

from kvgate.hf_config.architectures import ARCHITECTURES
from kvgate.hf_config.encoders import ENCODERS, LANGUAGE_MODELS, MODEL_TYPES
from kvgate.hf_config.family import EncoderReader, Family
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.latent_families import LATENT_FAMILIES
from kvgate.hf_config.layers import uniform_stack
from kvgate.hf_config.state_families import STATE_FAMILIES
from kvgate.hf_config.window_families import WINDOW_FAMILIES

_FAMILIES: dict[str, Family] = {
    **{name: Family(layers=uniform_stack, known=known) for name, known in ARCHITECTURES.items()},
    **WINDOW_FAMILIES,
    **STATE_FAMILIES,
    **LATENT_FAMILIES,
}


def family_of(architecture: str, fields: Fields) -> Family | None:
    """The class itself, or the class of its language model; None where nobody read it yet."""
    if architecture in ENCODERS and architecture not in LANGUAGE_MODELS and architecture not in _FAMILIES:
        named = (*fields.section("text_config").sequence("architectures"), MODEL_TYPES.get(fields.text("model_type")))
        return next((_FAMILIES[name] for name in named if name in _FAMILIES), None)
    return _FAMILIES.get(LANGUAGE_MODELS.get(architecture, architecture))


def classes_read() -> frozenset[str]:
    """Model classes that have a row of their own, as a model or as its towers."""
    return frozenset({*_FAMILIES, *LANGUAGE_MODELS, *ENCODERS})


def encoders_of(architecture: str) -> EncoderReader | None:
    """Return the reader of a multimodal class's towers; None where it has no towers, or none that kvgate can read."""
    return ENCODERS.get(architecture)
