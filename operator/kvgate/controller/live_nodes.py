"""The nodes and devices of the cluster in memory, and what they offer to each InferenceDeployment.

A node's heartbeat changes nothing here. Where a change means another answer for some objects, these are reconciled, all at once after a
pause, so that a node pool that grows by a hundred nodes costs one look.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from kvgate.api.v1alpha1 import InferenceDeploymentSpec
from kvgate.cluster.client import NODES, RESOURCE_SLICES, Cluster
from kvgate.cluster.following import Follower
from kvgate.controller.decision import Key
from kvgate.nodes.devices import DeviceSlice, SliceObject, claimable, slice_of_devices
from kvgate.nodes.node import Node, NodeObject, node_of
from kvgate.nodes.offer import Candidate, Offer, Question, candidates, offer_of, question_of, room_text, selected
from kvgate.runtime.background import Troubles

FIRST_LIST_SECONDS = 10.0
"""Time that the first judgement waits for the nodes; after that it is made without them."""
PAUSE_SECONDS = 1.0
"""Time in which changes of nodes are gathered."""


class LiveNodes:
    """The nodes and device slices as they were reported last; used in the working thread's event loop only."""

    def __init__(self, used: Callable[[str], Mapping[str, int]] = lambda _: {}) -> None:
        """`used` returns how many GPUs of a resource kvgate's own pods hold, by node."""
        self._used = used
        self._nodes: dict[str, Node] = {}
        self._objects: dict[str, int] = {}
        """Hash of what was read of each node, which a heartbeat leaves as it is."""
        self._slices: dict[str, DeviceSlice] = {}
        self._questions: dict[Key, Question] = {}
        self._told: dict[Key, Offer] = {}
        """The answer that each object got last."""
        self._answers: dict[Question, Offer] = {}
        """Answers since the last change."""
        self.is_known = False
        """True from the first complete list of nodes on."""
        self.changed = asyncio.Event()
        self.tried = (asyncio.Event(), asyncio.Event())
        """Set after the first lists of nodes and of devices."""

    async def first_list(self) -> None:
        """Wait until nodes and devices were listed, or cannot be, but not for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LIST_SECONDS):
                await asyncio.gather(*(each.wait() for each in self.tried))

    def node(self, type: str, found: NodeObject) -> None:  # noqa: A002 - as the API server calls it
        self.drop_node(found.metadata.name) if type == "DELETED" else self.put_node(found)

    def devices(self, type: str, found: SliceObject) -> None:  # noqa: A002 - as the API server calls it
        self.drop_slice(found.metadata.name) if type == "DELETED" else self.put_slice(found)

    def put_node(self, found: NodeObject) -> None:
        seen = hash(repr((sorted(found.metadata.labels.items()), found.spec, found.status)))
        if self._objects.get(found.metadata.name) != seen:
            self._objects[found.metadata.name] = seen
            self._nodes[found.metadata.name] = node_of(found)
            self._note_change()

    def keep_nodes(self, names: frozenset[str]) -> None:
        self.is_known = True
        for name in self._nodes.keys() - names:
            self.drop_node(name)

    def drop_node(self, name: str) -> None:
        self._objects.pop(name, None)
        if self._nodes.pop(name, None) is not None:
            self._note_change()

    def put_slice(self, found: SliceObject) -> None:
        read = slice_of_devices(found)
        if read is None:
            self.drop_slice(found.metadata.name)
        elif self._slices.get(read.name) != read:
            self._slices[read.name] = read
            self._note_change()

    def _note_change(self) -> None:
        self._answers.clear()
        self.changed.set()

    def keep_slices(self, names: frozenset[str]) -> None:
        for name in self._slices.keys() - names:
            self.drop_slice(name)

    def drop_slice(self, name: str) -> None:
        if self._slices.pop(name, None) is not None:
            self._note_change()

    def offer(self, key: Key, spec: InferenceDeploymentSpec, decided: str = "") -> Offer | None:
        """Return what the cluster offers to a spec; None until the nodes were listed."""
        question = self._questions[key] = question_of(spec, decided)
        if not self.is_known:
            return None
        answer = self._told[key] = self._answer(question)
        return answer

    def _answer(self, question: Question) -> Offer:
        if question not in self._answers:
            self._answers[question] = offer_of(question, self._found(question))
        return self._answers[question]

    def room(self, key: Key, num_gpus: int) -> str:
        """Say how many GPUs may be free for an object; empty where it is not known."""
        question = self._questions.get(key)
        if question is None or question.device_class:
            return ""
        found = self._found(question)
        return room_text(question, found, num_gpus, self._used(found[0].gpus.resource) if found else {})

    def taints(self, key: Key) -> str:
        """Name the taints for which nodes with the GPU do not take an object; empty where there is another node, or none at all."""
        question = self._questions.get(key)
        if question is None or question.device_class:
            return ""
        everything = replace(question.requirement, tolerations=((("operator", "Exists"),),))
        found = selected(question, self._found(replace(question, requirement=everything)))
        if not found or selected(question, self._found(question)):
            return ""
        names = sorted({taint.key for each in found for taint in each.node.taints})
        return f"nodes with this GPU, such as {found[0].node.name}, have the taint {', '.join(names)}"

    def forget(self, key: Key) -> None:
        self._questions.pop(key, None)
        self._told.pop(key, None)

    def _found(self, question: Question) -> list[Candidate]:
        if question.device_class:
            return claimable(question, self._slices.values(), self._nodes)
        return candidates(question, self._nodes.values())

    def to_tell(self) -> list[Key]:
        """Return the objects whose answer is another one than they were told."""
        return [key for key, question in self._questions.items() if self._told.get(key) != self._answer(question)]


async def follow(cluster: Cluster, nodes: LiveNodes, troubles: Troubles, enqueue: Callable[[Key], object]) -> None:
    """Keep nodes and devices up to date for ever, and enqueue the objects that a change concerns."""

    listed, sliced = nodes.tried
    followers: tuple[Follower[Any], ...] = (
        Follower(cluster, NODES, nodes.node, troubles, shape=NodeObject, keep=nodes.keep_nodes, tried=listed),
        Follower(
            cluster, RESOURCE_SLICES, nodes.devices, troubles, shape=SliceObject, keep=nodes.keep_slices, tried=sliced
        ),
    )
    async with asyncio.TaskGroup() as tasks:
        for follower in followers:
            tasks.create_task(follower.run_forever())
        while True:
            await nodes.changed.wait()
            await asyncio.sleep(PAUSE_SECONDS)
            nodes.changed.clear()
            for key in nodes.to_tell():
                enqueue(key)
