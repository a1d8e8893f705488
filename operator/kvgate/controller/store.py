"""What the process remembers per object: its last judgement, and the figures that the metrics show."""

from kvgate.api.base import Document
from kvgate.api.status import Condition
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.controller.observed import Judged, Observed, assess_owner, pinned_revision
from kvgate.controller.starts import ObservedStarts
from kvgate.metrics.exporter import DeploymentSample, sample_of
from kvgate.metrics.snapshot import DeploymentSnapshot

Key = tuple[str, str]
"""(namespace, name)."""


class Store:
    """Filled by reconciles; a deleted object leaves nothing behind."""

    def __init__(self, snapshot: DeploymentSnapshot, starts: ObservedStarts) -> None:
        self._snapshot = snapshot
        self._starts = starts
        self._samples: dict[Key, DeploymentSample] = {}
        self._judged: dict[Key, tuple[object, Judged]] = {}
        self._is_dirty = False

    def judge(self, key: Key, observed: Observed) -> Judged | None:
        """The judgement of this spec and these facts: computed once, since the catalogues never change while we run."""
        if not isinstance(observed.owner, InferenceDeployment):
            return None
        metadata = observed.document["metadata"]
        revision, newest = pinned_revision(observed.document), self._starts.calibration
        calibration = newest if revision is None else newest.as_of(revision)
        asked = (metadata["uid"], metadata.get("generation"), observed.owner.skip_reason, observed.config)
        question = (*asked, calibration)
        known = self._judged.get(key)
        if known is None or known[0] != question:
            known = self._judged[key] = (question, assess_owner(observed.owner, observed.config, calibration))
        return known[1]

    def show(self, key: Key, observed: Observed, judged: Judged | None, status: Document) -> None:
        """The figures for the next scrape."""
        conditions = tuple(map(Condition.model_validate, status["conditions"]))
        if isinstance(observed.owner, InferenceDeployment) and judged is not None:
            sample = sample_of(observed.owner, judged.assessment, conditions)
        else:
            sample = _unreadable(key, conditions)
        if self._samples.get(key) != sample:
            self._samples[key] = sample
            self._is_dirty = True

    def forget(self, key: Key) -> None:
        self._judged.pop(key, None)
        if self._samples.pop(key, None) is not None:
            self._is_dirty = True

    def keys(self) -> frozenset[Key]:
        return frozenset(self._samples)

    def publish(self) -> None:
        """Called once a second: one copy for many changes."""
        if self._is_dirty:
            self._is_dirty = False
            self._snapshot.publish(self._samples)


def _unreadable(key: Key, conditions: tuple[Condition, ...]) -> DeploymentSample:
    """Of an object whose spec cannot be read: its conditions, so that alerts see it."""
    states = tuple((condition.type, condition.status) for condition in conditions)
    return DeploymentSample(
        namespace=key[0], name=key[1], model="", accelerator="", kv_cache_dtype="", policy="", conditions=states
    )
