"""One control plane for many files of tests: before each it has the objects that it had at the start, and no others."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from controlplane.plane import ControlPlane
from controlplane.programs import ControlPlaneError, wait_until
from support.inference import crds, install

LEFT_TO_OTHERS = {"endpoints", "endpointslices", "ipaddresses", "componentstatuses"}
"""Kinds whose objects come and go with those of others."""
NAMESPACES = "/api/v1/namespaces"
AT_ONCE = "?gracePeriodSeconds=0&propagationPolicy=Background"


@dataclass(kw_only=True)
class SharedPlane:
    """Started when it is first asked for; one of whose programs has died is reported and replaced."""

    assets: Path
    _plane: ControlPlane | None = field(default=None, init=False)
    _running: ExitStack = field(default_factory=ExitStack, init=False)
    _collections: list[str] = field(default_factory=list, init=False)
    _at_the_start: set[str] = field(default_factory=set, init=False)

    def as_at_the_start(self) -> ControlPlane:
        """The control plane with the CRDs, nodes that have GPUs on paper, and an audit log that begins now."""
        if self._plane and self._plane.deaths():
            self.end()
        if self._plane is None:
            self._plane = self._running.enter_context(ControlPlane(self.assets))
            install(self._plane)
            self._collections = list(collections(self._plane))
            self._at_the_start = set(self._objects(self._plane))
        plane = self._plane
        wait_until(lambda: not self._left_behind(plane), "what the tests of a file left behind is deleted")
        plane.apply(*crds())
        plane.write_container_log(None)
        plane.begin_audit()
        return plane

    def end(self) -> None:
        """Stop it. Raises ControlPlaneError where one of its programs has died."""
        self._plane = None
        self._running.close()

    def _left_behind(self, plane: ControlPlane) -> list[str]:
        """Delete what was not there at the start; what of it was still there."""
        found = [path for path in self._objects(plane) if path not in self._at_the_start]
        for path in found:
            plane.delete(path + AT_ONCE)
            if path.rpartition("/")[0] == NAMESPACES:
                with suppress(ControlPlaneError):  # it has gone meanwhile
                    plane.request("PUT", f"{path}/finalize", emptied(path.rpartition("/")[2]))
        return found

    def _objects(self, plane: ControlPlane) -> Iterator[str]:
        for collection in self._collections:
            for each in plane.request("GET", collection)["items"]:
                yield place_of(collection, each["metadata"])


def emptied(name: str) -> dict[str, Any]:
    """A namespace that may go at once: its controller would wait five seconds before it looks for what is in it."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {"finalizers": []}}


def place_of(collection: str, metadata: dict[str, Any]) -> str:
    """Where one object of a collection is."""
    root, _, plural = collection.rpartition("/")
    there = f"{root}/namespaces/{metadata['namespace']}/{plural}" if "namespace" in metadata else collection
    return f"{there}/{quote(metadata['name'])}"


def collections(plane: ControlPlane) -> Iterator[str]:
    """Everything that can be listed and deleted; each kind once."""
    groups = plane.request("GET", "/apis")["groups"]
    for root in ("/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)):
        for each in plane.request("GET", root)["resources"]:
            if {"list", "delete"} <= set(each["verbs"]) and each["name"] not in LEFT_TO_OTHERS:
                yield f"{root}/{each['name']}"
