"""Imported for its effect: everything that a judgement reads once is read, so that processes forked afterwards have it."""

import gc

from kvgate import catalogue
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.judge.facts import look_up_model


def _warm_up() -> None:
    """Build the API types and read every model (half a second); what the collector never looks at stays shared memory."""
    InferenceDeployment.model_rebuild()
    catalogue.accelerators()
    for name in catalogue.model_names():
        look_up_model(name)
    catalogue.nearest_models("")
    catalogue.nearest_accelerators("")
    gc.collect()
    gc.freeze()


_warm_up()
