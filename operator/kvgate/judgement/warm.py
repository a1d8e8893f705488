"""Importing this module reads everything that a judgement reads once (half a second); processes that are forked later have it."""

import gc
from importlib import import_module

from kvgate import catalogue
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.judgement.models import look_up_model

InferenceDeployment.model_rebuild()
for module in ("adapters", "drafts"):  # what a judgement imports for those who have one
    import_module(f"kvgate.judgement.{module}")
catalogue.accelerators()
for name in catalogue.model_names():
    look_up_model(name)
look_up_model("an/unknown-model-AWQ")
catalogue.nearest_accelerators("")
gc.collect()
gc.freeze()  # the collector no longer writes to these objects, so that the processes share their memory
