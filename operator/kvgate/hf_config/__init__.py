"""config.json → ModelShape, and a draft's config.json → Draft: the one reader behind the catalogue, `configFrom` and `--model-config`."""

from kvgate.hf_config.fields import ModelConfigError
from kvgate.hf_config.reader import read_config

__all__ = ["ModelConfigError", "read_config"]
