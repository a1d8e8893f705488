"""Facts about the nodes that engines ran on, from the labels that GPU operators set; only where somebody allows to read nodes."""

import logging
import time
from collections.abc import Callable

from msgspec import Struct

from kvgate.cluster.client import NODES, Cluster
from kvgate.cluster.errors import ApiError

KEPT_SECONDS = 600.0
"""Time for which a node's labels are believed; a driver changes with a restart of the node."""
MAX_NODES = 5000
_DRIVERS = ("nvidia.com/cuda.driver-version.full", "amd.com/gpu.driver-version")
_PARTS = tuple(f"nvidia.com/cuda.driver.{part}" for part in ("major", "minor", "rev"))
"""Labels of GPU feature discovery before 0.16; later releases have them beside the whole text."""
_PRODUCTS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
_SHARED_SUFFIX = "-SHARED"
"""GPU feature discovery adds it to the product where pods share a GPU in time slices."""

_log = logging.getLogger(__name__)


class NodeFacts(Struct, frozen=True, kw_only=True):
    """The part of a node's labels that decides about starts; empty where it is not known."""

    driver: str = ""
    product: str = ""
    is_shared: bool = False
    """True where several pods may use one GPU."""
    is_gone: bool = False
    """True where the cluster has no such node any more."""

    @classmethod
    def of(cls, labels: dict[str, str]) -> "NodeFacts":
        parts = [labels.get(name, "") for name in _PARTS]
        driver = next((labels[name] for name in _DRIVERS if labels.get(name)), ".".join(filter(None, parts)))
        product = next((labels[name] for name in _PRODUCTS if labels.get(name)), "")
        strategy = labels.get("nvidia.com/gpu.sharing-strategy", "none")
        is_shared = strategy not in ("none", "") or product.endswith(_SHARED_SUFFIX)
        return cls(driver=driver, product=product.removesuffix(_SHARED_SUFFIX), is_shared=is_shared)


class Nodes:
    """The nodes that were read, each again after a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, NodeFacts]] = {}
        self._has_told = False

    async def of(self, cluster: Cluster, name: str) -> NodeFacts:
        """Return a node's facts; none where it has no name or cannot be read, which is logged once."""
        if not name:
            return NodeFacts()
        now = self._clock()
        at, facts = self._known.get(name, (float("-inf"), NodeFacts()))
        if now - at < KEPT_SECONDS:
            return facts
        facts = NodeFacts()
        try:
            found = await cluster.find(NODES, None, name)
            if not found:
                return NodeFacts(is_gone=True)  # one of the same name may come at any time
            facts = NodeFacts.of(found["metadata"].get("labels") or {})
        except ApiError as error:
            if not self._has_told:
                _log.warning("nodes cannot be read, so starts are kept without driver and product: %s", error)
                self._has_told = True
        if len(self._known) >= MAX_NODES:
            self._known.clear()
        self._known[name] = now, facts
        return facts
