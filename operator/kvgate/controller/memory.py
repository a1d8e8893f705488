"""The process's memory of each object: its last judgement, corrections of its children, reports of its pods, figures of the metrics."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from kvgate.api import ADOPT_ANNOTATION, SKIP_BUDGET_ANNOTATION, SKIP_BUDGET_UNTIL_ANNOTATION
from kvgate.api.base import Document
from kvgate.api.conditions import Reason
from kvgate.api.status import Condition
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget import Budget, Calibration
from kvgate.controller.decision import Intent, Judged, Key, Situation
from kvgate.controller.judging import Judge, judge_here
from kvgate.controller.records import Records
from kvgate.controller.starts import ObservedStarts
from kvgate.judgement.facts import ConfigMissing
from kvgate.metrics.exporter import DeploymentSnapshot
from kvgate.metrics.samples import (
    DeploymentSample,
    ObservedSample,
    PodSample,
    RolloutSample,
    SkipSample,
    as_admitted,
    conditions_of,
    sample_of,
)
from kvgate.rendering.hindrances import Hindrance
from kvgate.rendering.labels import PassedOn
from kvgate.rendering.lengths import lengths_of
from kvgate.rendering.observation import (
    Crash,
    Observation,
    Obstacle,
    RunningEngine,
    capacity_tokens,
    compared,
    rollout_of,
)
from kvgate.rendering.status import is_changed, previous_status
from kvgate.rendering.workload import predicted_tokens

WINDOW_SECONDS = 3600.0
"""Time for which a correction is remembered; after that the same one is tried again."""
REFUSED_SECONDS = 240.0
"""Time for which a refusal by a quota or a policy is believed. It is shorter than the time between two resyncs, so each tries again."""
MAX_CORRECTIONS = 3
"""Corrections of the same difference within WINDOW_SECONDS; a difference that still comes back is wanted by somebody."""
_MAY_PASS = (Reason.QUOTA_EXCEEDED, Reason.ADMISSION_DENIED)
_OF_OBJECT = 2
"""Members of a judgement's basis that are about one object."""
Difference = tuple[str, ...]
"""Hash of what is wanted, and the paths that differ from it."""


@dataclass(kw_only=True, slots=True)
class _Tried:
    at: list[float] = field(default_factory=list)
    was_in_vain: bool = False
    """The API server's answer to the last correction had the difference again."""
    obstacle: Obstacle | None = None
    """Reason why the API server refused the last correction."""
    for_seconds: float = WINDOW_SECONDS


class Corrections:
    """Corrections of one object's children: a difference that comes back each time is reported, and not corrected for ever.

    They live in memory, so a restarted controller tries once more.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tried: dict[tuple[str, Difference], _Tried] = {}

    def may_try(self, kind: str, difference: Difference) -> bool:
        tried = self._recent(kind, difference)
        if tried is None:
            return True
        return not tried.was_in_vain and tried.obstacle is None and len(tried.at) < MAX_CORRECTIONS

    def obstacle(self, kind: str, difference: Difference) -> Obstacle | None:
        tried = self._recent(kind, difference)
        return tried.obstacle if tried else None

    def note(
        self, kind: str, difference: Difference, *, left: Difference = (), obstacle: Obstacle | None = None
    ) -> None:
        """Remember a correction: what still differs in the API server's answer, or the obstacle where there was no answer."""
        tried = self._tried.setdefault((kind, difference), _Tried())
        tried.at.append(self._clock())
        tried.obstacle = obstacle
        tried.for_seconds = REFUSED_SECONDS if obstacle and obstacle.reason in _MAY_PASS else WINDOW_SECONDS
        tried.was_in_vain = left == difference
        if (
            left and left != difference
        ):  # a webhook changed the object on its way, so from now on this difference is seen
            self._tried[kind, left] = _Tried(at=[self._clock()], was_in_vain=True)

    def _recent(self, kind: str, difference: Difference) -> _Tried | None:
        now = self._clock()
        self._tried = {key: tried for key, tried in self._tried.items() if now - tried.at[-1] < tried.for_seconds}
        tried = self._tried.get((kind, difference))
        if tried is not None:
            tried.at = [moment for moment in tried.at if now - moment < WINDOW_SECONDS]
        return tried


class _Judgement(Struct, frozen=True, kw_only=True):
    """The last judgement of an object, and what it was made with."""

    basis: tuple[object, ...]
    then: Calibration
    newest: Calibration
    judged: Judged


def _is_alike(judged: Judged, one: Calibration, other: Calibration) -> bool:
    """Return True where two calibrations have the same starts of such an engine, so that both give this judgement."""
    budget = judged.assessment.budget
    if one is other or budget is None:
        return True
    accelerator = budget.request.accelerator.name
    return one.about(accelerator) == other.about(accelerator)


class Memory:
    """Filled by reconciles and observations; nothing is kept of a deleted object."""

    def __init__(self, snapshot: DeploymentSnapshot, starts: ObservedStarts, judge: Judge = judge_here) -> None:
        self._snapshot = snapshot
        self._starts = starts
        self._judge = judge
        self._samples: dict[Key, DeploymentSample] = {}
        self._judged: dict[Key, _Judgement] = {}
        self._equal: WeakValueDictionary[object, Judged] = WeakValueDictionary()
        """Judgements of specs and facts, for objects that are alike in all of them; one that nobody has any more goes."""
        self._asked: WeakValueDictionary[object, asyncio.Lock] = WeakValueDictionary()
        self._deployments: dict[Key, str] = {}
        self._observations: dict[Key, Observation] = {}
        self._pods: dict[Key, tuple[PodSample, ...]] = {}
        """Pods as the watch reported them, without what their engines report."""
        self._budgets: dict[Key, Budget | None] = {}
        """Budget of the last judgement, whose layout turns an old engine's blocks into tokens."""
        self._hindrances: dict[Key, tuple[Hindrance, ...]] = {}
        self._lengths: dict[Key, Mapping[str, int]] = {}
        """Longest request of each pod, where vLLM chose it."""
        """Why pods are not ready, in the order of their names."""
        self._learnt: dict[Key, frozenset[RunningEngine | tuple[str, str]]] = {}
        """Starts that were learnt from; a refused start is (pod, reason), because one of a kind is enough in a crash loop."""
        self._settled: dict[Key, tuple[tuple[object, ...], Document]] = {}
        """The state of the object that the last run saw (`_state`), and the status that this run left."""
        self._corrections: dict[Key, Corrections] = {}
        self._remarks: dict[Key, str] = {}
        self._is_dirty = False
        self.records = Records()
        self.passed_on = PassedOn()
        self.dropped: frozenset[str] = frozenset()
        """Fields of the last status that the API server dropped, because its CRD is older than kvgate."""

    async def judge(self, key: Key, situation: Situation) -> Judged | None:
        """Return the judgement of this spec and these facts. It is made once, because the catalogues do not change in a process.

        A verdict that stands is judged a second time, with the newest starts, only where these say something about such an engine.
        """
        owner = situation.judged_owner
        if not isinstance(owner, InferenceDeployment):
            return None
        if (known := self.judged(key, situation)) is not None:
            return known
        basis, (then, newest) = self._basis(situation), self._calibrations(key, situation)
        judged = await self._judged_once(owner, situation, basis, then)
        if not _is_alike(judged, then, newest):
            judged = replace(judged, newest=await self._judged_once(owner, situation, basis, newest))
        self._judged[key] = _Judgement(basis=basis, then=then, newest=newest, judged=judged)
        return judged

    async def _judged_once(
        self, owner: InferenceDeployment, situation: Situation, basis: tuple[object, ...], calibration: Calibration
    ) -> Judged:
        """Judge, or return the judgement of an equal spec with equal facts; one of the same namespace that is on its way is waited for."""
        question = repr(owner.spec), basis[_OF_OBJECT:], calibration
        async with self._asked.setdefault((owner.namespace, question), asyncio.Lock()):
            if (judged := self._equal.get(question)) is None:
                beside = situation.models, situation.skip, situation.offer
                judged = self._equal[question] = await self._judge(owner, situation.config, calibration, *beside)
            return judged

    def judged(self, key: Key, situation: Situation) -> Judged | None:
        """Return the judgement if it was made already, and if no start was learnt since that could change it."""
        known = self._judged.get(key)
        if known is None or known.basis != self._basis(situation):
            return None
        then, newest = self._calibrations(key, situation)
        if not (_is_alike(known.judged, known.then, then) and _is_alike(known.judged, known.newest, newest)):
            return None
        self._judged[key] = replace(known, then=then, newest=newest)
        return known.judged

    @staticmethod
    def _basis(situation: Situation) -> tuple[object, ...]:
        """Return all but the observed starts that the judgement depends on; the text behind configFrom is kept as a digest.

        The first two name the object and its spec.
        """
        metadata, config = situation.document["metadata"], situation.config
        content = (
            config if isinstance(config, ConfigMissing) else sha256(config.encode(errors="surrogatepass")).digest()
        )
        fetched = situation.resolution.content if situation.resolution else ()
        nodes = situation.offer.basis if situation.offer else None
        return metadata["uid"], metadata.get("generation"), situation.skip, content, fetched, nodes

    def _calibrations(self, key: Key, situation: Situation) -> tuple[Calibration, Calibration]:
        """Return the observed starts as of the admission, and the newest ones; both are the newest where nothing was admitted."""
        revision, newest = situation.calibration_revision, self._starts.calibration
        self._starts.note_revision(revision)
        then = newest if revision is None else newest.as_of(revision)
        return then.seen_from(*key), newest.seen_from(*key)

    def written(self, key: Key, document: Document) -> Document | None:
        """Return the status that this process wrote last to this very object (the same uid), whatever others made of it since."""
        state, status = self._settled.get(key, ((None,), None))
        return status if state[0] == document["metadata"]["uid"] else None

    def settled(self, key: Key, document: Document, status: Document) -> None:
        self._settled[key] = (self._state(document), status)

    def is_news(self, key: Key, document: Document) -> bool:
        """Return True where an event tells something that no run has seen; False for the echo of our own write."""
        state, status = self._settled.get(key, (None, {}))
        return state != self._state(document) or is_changed(previous_status(document, "", dropped=self.dropped), status)

    def _state(self, document: Document) -> tuple[object, ...]:
        """Return all of the object itself that a decision depends on; the uid is first."""
        metadata = document["metadata"]
        annotations = metadata.get("annotations") or {}
        ours = tuple(
            annotations.get(each) for each in (SKIP_BUDGET_ANNOTATION, SKIP_BUDGET_UNTIL_ANNOTATION, ADOPT_ANNOTATION)
        )
        passed = self.passed_on.of(metadata)
        return metadata.get("uid"), metadata.get("generation"), ours, passed, metadata.get("deletionTimestamp")

    def corrections(self, key: Key) -> Corrections:
        return self._corrections.setdefault(key, Corrections())

    def show(
        self, key: Key, situation: Situation, intent: Intent, status: Document, deployment: Document | None
    ) -> None:
        """Keep the figures for the next scrape, and the Deployment whose pods are observed."""
        conditions = tuple(map(Condition.from_document, status["conditions"]))
        if isinstance(situation.owner, InferenceDeployment) and intent.judged is not None:
            assessment, observation, admitted = intent.judged.assessment, self.observation(key), intent.admitted
            expected = admitted.predicted_tokens if admitted else predicted_tokens(assessment)
            figures = compared(observation, assessment.effective, intent.template_hash, expected)
            error = float(figures.error) if figures.error is not None else None
            usage = observation.usage_ratio if observation else None
            lengths = lengths_of(observation, assessment.effective, intent.template_hash).tokens
            self._lengths[key] = {pod: length for length, pod in lengths}
            seen = ObservedSample(
                pods=figures.pods, capacity_tokens=figures.capacity_tokens, usage_ratio=usage, error_ratio=error,
                max_model_len_tokens=lengths[0][0] if lengths else None,
            )  # fmt: skip
            sample = sample_of(situation.owner, assessment, conditions, seen if observation else None)
            if admitted is not None and admitted.record.reason == Reason.BUDGET_SKIPPED:
                skip = situation.skip_now  # its end is not known where the object has another break glass by now
                until = skip.until if skip is not None and skip.reason == admitted.record.skip_reason else None
                sample = replace(sample, skip=SkipSample(until_seconds=until.timestamp() if until else None))
            if admitted is not None and intent.is_kept:
                promised = admitted.prediction
                sample = as_admitted(sample, admitted.record.effective, promised.figures if promised else None)
            today = intent.judged.today.assessment.effective
            if intent.recalibration is not None and today is not None and today.num_tokens is not None:
                tokens = today.num_tokens
                sample = replace(sample, recalibrated_tokens=(tokens.low, tokens.expected, tokens.high))
        else:  # the spec cannot be read: its conditions alone, so that alerts see the object
            sample = DeploymentSample(
                namespace=key[0], name=key[1], model="", accelerator="", kv_cache_dtype="", policy="",
                conditions=conditions_of(conditions),
            )  # fmt: skip
        self._deployments.pop(key, None)
        if deployment is not None:
            self._deployments[key] = deployment["metadata"].get("uid", "")
            rollout = rollout_of(deployment)
            sample = replace(
                sample,
                rollout=RolloutSample(wanted=rollout.wanted, ready=rollout.ready, updated=rollout.updated),
                load_seconds=intent.admitted.record.load_seconds if intent.admitted else None,
            )
        self._budgets[key] = intent.judged.assessment.effective if intent.judged else None
        self._set(key, self._with_pods(key, sample))

    def _with_pods(self, key: Key, sample: DeploymentSample) -> DeploymentSample:
        engines = {engine.pod: engine.reading for engine in self._observations.get(key, Observation()).engines}
        pods = (
            replace(
                pod,
                capacity_tokens=capacity_tokens(reading, self._budgets.get(key)),
                usage_ratio=reading.usage_ratio,
                max_model_len_tokens=self._lengths.get(key, {}).get(pod.name),
            )
            if pod.is_ready and (reading := engines.get(pod.name))
            else pod
            for pod in self._pods.get(key, ())
        )
        return replace(sample, pods=tuple(pods))

    def expect(self, key: Key, deployment: Document) -> None:
        """Have the pods of a Deployment looked at whose object was not reconciled yet; its first run decides whether it is its own."""
        self._deployments[key] = deployment["metadata"].get("uid", "")

    def deployments(self) -> dict[str, Key]:
        """Return the objects by the uid of their Deployment."""
        return {uid: key for key, uid in self._deployments.items()}

    def observation(self, key: Key) -> Observation | None:
        """Return what the pods reported; None until they were read, after a restart as well."""
        seen = self._observations.get(key)
        return replace(seen, remark=self._remarks.get(key, "")) if seen else None

    def crashed(self) -> dict[Key, frozenset[str]]:
        """Return the names of the pods that have crashed, of the objects that have such pods."""
        seen = self._observations.items()
        return {key: frozenset(crash.pod for crash in each.crashes) for key, each in seen if each.crashes}

    def running_images(self) -> dict[Key, frozenset[str]]:
        """Return the digests of the images that the ready pods of each object run."""
        return {
            key: frozenset(engine.image.rpartition("@")[2] for engine in seen.engines if "@" in engine.image)
            for key, seen in self._observations.items()
        }

    def observe(self, observations: Mapping[Key, Observation]) -> list[Key]:
        """Keep these observations, show their usages at once, and return the objects whose capacity, troubles or crashes changed.

        Objects without a new observation keep their last one.
        """
        known = {key: seen for key, seen in observations.items() if key in self._samples}
        changed = [key for key, seen in known.items() if self._observations.get(key) != seen]
        self._observations |= known
        for key, seen in known.items():
            sample = self._samples[key]
            if sample.observed is not None:
                sample = replace(sample, observed=replace(sample.observed, usage_ratio=seen.usage_ratio))
            self._set(key, self._with_pods(key, sample))
        return changed

    def see_pods(self, pods: Mapping[Key, tuple[PodSample, ...]]) -> None:
        """Keep the pods of these objects as the watch reports them, ready or not, and show them."""
        for key, found in pods.items():
            if key in self._samples and found != self._pods.get(key, ()):
                self._pods[key] = found
                self._set(key, self._with_pods(key, self._samples[key]))

    def hinder(self, hindrances: Mapping[Key, Sequence[Hindrance]]) -> list[Key]:
        """Keep the hindrances of these objects' pods, and return the objects for which they changed."""
        changed = [key for key, found in hindrances.items() if self._hindrances.get(key, ()) != tuple(found)]
        self._hindrances |= {key: tuple(hindrances[key]) for key in changed}
        return changed

    def hindrances(self, key: Key, template_hash: str) -> tuple[Hindrance, ...]:
        """Return those of the pods of the current spec."""
        return tuple(each for each in self._hindrances.get(key, ()) if each.template_hash == template_hash)

    def new_starts(self, key: Key, template_hash: str) -> tuple[RunningEngine | Crash, ...]:
        """Return the starts of the current spec from which nothing was learnt yet; after a restart these are all of them."""
        seen, learnt = self._observations.get(key, Observation()), self._learnt.get(key, frozenset())
        return tuple(start for start in seen.starts(template_hash) if _identity(start) not in learnt)

    def learnt(self, key: Key, starts: tuple[RunningEngine | Crash, ...], remark: str) -> None:
        """Remember that these starts were learnt from, and why they correct no prediction; the remark is empty where they do."""
        seen = self._observations.get(key, Observation())
        kept = frozenset(map(_identity, seen.engines)) | frozenset(map(_identity, seen.crashes))
        self._learnt[key] = kept & (self._learnt.get(key, frozenset()) | frozenset(map(_identity, starts)))
        self._remarks[key] = remark

    def forget(self, key: Key) -> None:
        memories: tuple[dict[Key, Any], ...] = (
            self._judged, self._deployments, self._observations, self._learnt, self._remarks, self._settled,
            self._corrections, self._pods, self._budgets, self._hindrances, self._lengths,
        )  # fmt: skip
        for memory in memories:
            memory.pop(key, None)
        self.records.forget(key)
        if self._samples.pop(key, None) is not None:
            self._is_dirty = True

    def _set(self, key: Key, sample: DeploymentSample) -> None:
        if self._samples.get(key) != sample:
            self._samples[key] = sample
            self._is_dirty = True

    def keys(self) -> frozenset[Key]:
        return frozenset(self._samples)

    def publish(self) -> None:
        """Hand the figures to the scrapes; called once a second, so that many changes cost one copy."""
        if self._is_dirty:
            self._is_dirty = False
            self._snapshot.publish(self._samples)


def _identity(start: RunningEngine | Crash) -> RunningEngine | tuple[str, str]:
    return start if isinstance(start, RunningEngine) else (start.pod, start.reason)
