"""kopf's settings, each with its reason."""

from collections.abc import Iterator

import kopf

from kvgate.api import GROUP
from kvgate.rendering.labels import OWNER_LABEL

FINALIZER = f"kopf.{GROUP}/finalizer"
"""Nothing here needs one; kopf's own name for it would be that of every other operator."""
_MAX_BACKOFF_SECONDS = 30


class EndlessBackoffs:
    """1, 2, 4 … 30, 30 s: a watch that gives up would never come back, and an outage may be long."""

    def __iter__(self) -> Iterator[float]:
        seconds = 1
        while True:
            yield seconds
            seconds = min(seconds * 2, _MAX_BACKOFF_SECONDS)


def operator_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True  # a stray peering object called `default` would pause us
    settings.scanning.disabled = True  # no rights over CRDs and namespaces; that ours exists is checked at the start
    settings.posting.enabled = False  # our own recorder aggregates
    settings.persistence.finalizer = FINALIZER
    settings.watching.inactivity_timeout = 70  # a minute's bookmark and a little more: a silent stream is a dead one
    settings.watching.server_timeout = 270
    settings.watching.client_timeout = 300
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.enforce_retry_after = True
    settings.networking.error_backoffs = EndlessBackoffs()
    settings.process.ultimate_exiting_timeout = 15  # below the pod's 30 s
    settings.execution.max_workers = 2  # every handler is async
    settings.watching.label_selectors["apps", "v1", "deployments"] = OWNER_LABEL  # the rest never enters the process
    settings.watching.label_selectors["", "v1", "services"] = OWNER_LABEL
    settings.watching.label_selectors["", "v1", "pods"] = OWNER_LABEL
    return settings
