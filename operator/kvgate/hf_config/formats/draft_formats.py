"""The formats in which drafts are published, as one mapping, and the method that vLLM deduces from it.

Read in vLLM 0.32: `SpeculativeConfig.__post_init__`, `transformers_utils/configs/{eagle,speculators}`.
"""

from collections.abc import Mapping
from typing import Any

_SPECULATOR_CLASSES = {
    ("eagle3", "llama"): "Eagle3LlamaForCausalLM",
    ("eagle3", "qwen3"): "Eagle3Qwen3ForCausalLM",
    ("peagle", "llama"): "PeagleLlamaForCausalLM",
    ("peagle", "qwen3"): "PeagleQwen3ForCausalLM",
    ("dflash", ""): "DFlashDraftModel",
    ("dflash2", ""): "DFlash2DraftModel",
    ("dspark", ""): "Qwen3DSparkModel",
}
"""(algorithm, model_type of its layers) → vLLM's class for a draft in the format of the speculators library."""


def unwrapped(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the draft's layers with the keys around them: EAGLE and the speculators library keep it in a section."""
    algorithm = config.get("speculators_model_type")
    inner = config.get("transformer_layer_config")
    if isinstance(algorithm, str) and isinstance(inner, Mapping):
        kind = str(inner.get("model_type") or "llama")
        known = _SPECULATOR_CLASSES.get((algorithm, kind)) or _SPECULATOR_CLASSES.get((algorithm, ""))
        architecture = known or f"{algorithm} speculator of {kind}"
        around = {key: value for key, value in config.items() if key != "transformer_layer_config"}
        # keys around the section that win over those in it
        names = ("draft_vocab_size", "target_hidden_size", "norm_before_fc", "fc_norm", "aux_hidden_state_layer_ids")
        own = {key: config[key] for key in names if config.get(key) is not None}
        return {**around, **inner, **own, "model_type": kind, "architectures": [architecture]}
    model = config.get("model")
    return {**config, **model} if config.get("model_type") == "eagle" and isinstance(model, Mapping) else config


def method_of(config: Mapping[str, Any], *, name: str, given: str = "") -> str:
    """Return the method that vLLM takes: the given one, else what the name or the config says; empty for a complete model.

    vLLM 0.32, `SpeculativeConfig.__post_init__`.
    """
    kind, architecture = str(config.get("model_type") or ""), first_architecture(config)
    if given in ("eagle", "eagle3", "dflash", "dspark", "medusa", "mlp_speculator"):
        return given
    lower = name.lower()
    for words, method in (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark")):
        if words in lower:
            return method
    if architecture in ("MuseGlimmerAssistantModel", "DFlashDraftModel", "DFlash2DraftModel"):
        return "dflash"
    if "Eagle3" in architecture or architecture.startswith(("Peagle", "PEagle")):
        return "eagle3"
    if "DSpark" in architecture:
        return "dspark"
    if architecture.startswith("Eagle"):
        return "eagle"
    if kind in ("medusa", "mlp_speculator"):
        return kind
    is_mtp = kind.endswith("_mtp") or kind in ("gemma4_assistant", "gemma4_unified_assistant")
    return "mtp" if is_mtp or given == "mtp" else ""


def first_architecture(config: Mapping[str, Any]) -> str:
    """Return the first class that the config names; empty where it names none."""
    architectures = config.get("architectures")
    found = architectures[0] if isinstance(architectures, list) and architectures else ""
    return found if isinstance(found, str) else ""
