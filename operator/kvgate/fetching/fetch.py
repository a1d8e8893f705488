"""One model, or several at once, from a hub: the facts, or the reason why there are none."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from kvgate.checkpoint.not_fetched import NotFetched, Reason
from kvgate.checkpoint.published import Published
from kvgate.fetching.bounded_http import Http
from kvgate.fetching.checkpoint_names import CheckpointName, checkpoint_name
from kvgate.fetching.folder import cached
from kvgate.fetching.hub import Hub, HubFiles, hub_of_environment
from kvgate.fetching.limits import LIMITS, CouldNotFetch, Limits, Spending
from kvgate.fetching.reading import published
from kvgate.text.inert import inert


def fetch(name: str, revision: str = "", *, limits: Limits = LIMITS, hub: Hub | None = None) -> Published | NotFetched:
    """Return what is published under a name; it blocks for `limits.max_seconds` at most, and raises nothing.

    `hub` is the one of the environment (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE) where none is given.
    """
    return _fetch(name, revision, Spending(limits), hub)


def fetch_all(
    wanted: Iterable[tuple[str, str]], *, limits: Limits = LIMITS, hub: Hub | None = None, num_at_once: int = 4
) -> tuple[Published | NotFetched, ...]:
    """Fetch models by (name, revision), in this order; all of them together have the time of one."""
    wanted = tuple(dict.fromkeys(wanted))
    accounts = [Spending(limits) for _ in wanted]
    with ThreadPoolExecutor(num_at_once, thread_name_prefix="kvgate-models") as pool:
        fetched = pool.map(lambda each, spending: _fetch(each[0], each[1], spending, hub), wanted, accounts)
        return tuple(fetched)


def _fetch(name: str, revision: str, spending: Spending, hub: Hub | None) -> Published | NotFetched:
    try:
        wanted = checkpoint_name(name, revision)
        return _from_hub(wanted, spending, hub or hub_of_environment())
    except CouldNotFetch as error:
        message = error.message if name in error.message else f"{name}: {error.message}"
        return NotFetched(
            name=name, revision=revision, reason=error.reason, message=message, remedies=tuple(error.remedies)
        )
    except Exception as error:  # noqa: BLE001 - a defect of ours costs one model
        message = f"{inert(name[:200])}: kvgate failed: {type(error).__name__}: {inert(str(error)[:300])}"
        return NotFetched(
            name=name, revision=revision, reason=Reason.BROKEN, message=message, remedies=("report this",)
        )


def _from_hub(wanted: CheckpointName, spending: Spending, hub: Hub) -> Published:
    """Read the hub; where it cannot be reached, read the cache, as huggingface_hub does."""
    num_parallel = spending.limits.num_parallel
    if hub.is_offline:
        files = cached(hub.cache, wanted, hub.host)
        if files is None:
            raise CouldNotFetch(
                Reason.OFFLINE,
                f"HF_HUB_OFFLINE forbids requests, and the cache does not have {wanted.repository}",
                "unset HF_HUB_OFFLINE",
                f"fill the cache elsewhere: hf download {wanted.repository}",
            )
        return published(files, wanted, num_parallel=num_parallel)
    try:
        with Http(spending).open() as http:
            return published(HubFiles(http, hub, wanted), wanted, num_parallel=num_parallel)
    except CouldNotFetch as error:
        files = cached(hub.cache, wanted, hub.host) if error.reason in _MAY_PASS else None
        if files is None:
            raise
        return published(files, wanted, num_parallel=num_parallel)


_MAY_PASS = (Reason.UNREACHABLE, Reason.RATE_LIMITED, Reason.TIME_OVER)
