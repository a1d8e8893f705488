"""config.json → ModelShape: the one reader behind the catalogue, `configFrom` and `--model-config`."""

from kvgate.hf_config.fields import ModelConfigError
from kvgate.hf_config.reader import read_config

__all__ = ["ModelConfigError", "read_config"]
