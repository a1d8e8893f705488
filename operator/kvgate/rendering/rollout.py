"""State of a Deployment's rollout, in the words of the conditions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """Counts of pods, and whether the Deployment's controller has caught up."""

    wanted: int = 0
    existing: int = 0
    ready: int = 0
    available: int = 0
    updated: int = 0
    is_observed: bool = False
    """The counts speak of the present spec of the Deployment."""
    stuck: str = ""
    """Its own words once the progress deadline has passed."""
    refused: str = ""
    """The API server's words where it refuses the pods: a quota, an admission policy."""

    @property
    def is_complete(self) -> bool:
        """All replicas are of the present spec and available, and no older one is left."""
        return self.is_observed and self.updated == self.available == self.existing == self.wanted


def rollout_of(deployment: Mapping[str, Any]) -> Rollout:
    """Absent counts are zero, as the API server writes them."""
    status, metadata = deployment.get("status", {}), deployment.get("metadata", {})
    said = {condition.get("type"): condition for condition in status.get("conditions", ())}
    progressing, failure = said.get("Progressing", {}), said.get("ReplicaFailure", {})
    return Rollout(
        wanted=deployment.get("spec", {}).get("replicas", 1),
        existing=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        available=status.get("availableReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        is_observed=status.get("observedGeneration", 0) >= metadata.get("generation", 1),
        stuck=str(progressing.get("message", "")) if progressing.get("reason") == "ProgressDeadlineExceeded" else "",
        refused=str(failure.get("message", "")) if failure.get("status") == "True" else "",
    )
