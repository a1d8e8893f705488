"""Repositories of a hub: huggingface.co, or whatever HF_ENDPOINT names.

Address, token, cache and offline mode are those of huggingface_hub. Its downloads are not used: they follow redirects anywhere, wait
as long as a server says, and have no limit of time or size.
"""

from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import quote

from msgspec import DecodeError, Struct
from msgspec.json import decode
from msgspec.structs import replace

from kvgate import INSTALL, __version__
from kvgate.checkpoint.not_fetched import Reason
from kvgate.fetching.bounded_http import REACH, Answer, Http, Range, broken, host_of, retry_after
from kvgate.fetching.checkpoint_names import CheckpointName
from kvgate.fetching.limits import CouldNotFetch
from kvgate.fetching.reading import CheckpointFiles, Part
from kvgate.text.inert import inert

_MAX_LISTING_BYTES = 32 << 20
"""Bytes of the answer that lists a repository; it has about 60 for each file."""
_MAX_LISTED = 20_000
"""Files of a repository; hubs advise against more than 100,000, and models have some hundred."""
_HEADERS = {"user-agent": f"kvgate/{__version__}", "accept-encoding": "identity"}


class Hub(Struct, frozen=True, kw_only=True):
    """A hub, and the account that asks."""

    endpoint: str = "https://huggingface.co"
    token: str | None = None
    is_offline: bool = False
    cache: Path | None = None
    """Folder in which huggingface_hub keeps what was downloaded; it is read where the hub cannot be."""

    @property
    def host(self) -> str:
        return host_of(self.endpoint)


def hub_of_environment() -> Hub:
    """Return the hub, the token and the mode that huggingface_hub finds in the environment and in its files. Raises CouldNotFetch."""
    try:
        from huggingface_hub import constants, get_token
    except ImportError:
        raise CouldNotFetch(
            Reason.NOT_INSTALLED, "huggingface_hub is not installed", INSTALL.format(extras="hub")
        ) from None
    hub = Hub(endpoint=constants.ENDPOINT, is_offline=constants.is_offline_mode(), cache=Path(constants.HF_HUB_CACHE))
    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN or hub.is_offline:
        return hub
    try:
        token = get_token()
    except Exception as error:  # noqa: BLE001 - an unreadable file, or an exchange of tokens that failed
        raise CouldNotFetch(
            Reason.UNREACHABLE,
            f"huggingface_hub gives no token: {inert(str(error)[:300])}",
            "run `hf auth login` again, or set HF_TOKEN",
        ) from None
    return replace(hub, token=token)


class HubFiles(CheckpointFiles):
    """One commit of a repository."""

    def __init__(self, http: Http, hub: Hub, wanted: CheckpointName) -> None:
        self._http, self._hub, self._wanted = http, hub, wanted
        self.source = hub.host
        repository, revision = self._wanted.repository, quote(self._wanted.revision, safe="")
        answer = self._get(f"api/models/{repository}/revision/{revision}", max_bytes=_MAX_LISTING_BYTES)
        try:
            listing = decode(answer.body)
        except (DecodeError, RecursionError, UnicodeError) as error:
            what = f"the list of the files of {repository} from {self.source}"
            raise broken(f"{what} is not JSON ({inert(str(error)[:200])})") from None
        siblings = listing.get("siblings") if isinstance(listing, dict) else None
        if not isinstance(siblings, list):
            raise broken(f"{self._hub.host} does not list the files of {repository}")
        names = [each.get("rfilename") for each in siblings[:_MAX_LISTED] if isinstance(each, dict)]
        commit = listing.get("sha")
        is_commit = isinstance(commit, str) and len(commit) == 40 and set(commit) <= set("0123456789abcdef")
        self.commit, self.names = commit if is_commit else "", frozenset(filter(_is_file_name, names))

    def read(self, name: str, *, max_bytes: int) -> bytes:
        return self._file(name, max_bytes=max_bytes).body

    def read_part(self, name: str, *, start: int, length: int) -> Part:
        answer = self._file(name, wanted=Range(start, length), max_bytes=length)
        return Part(answer.body, answer.total_bytes)

    def _file(self, name: str, *, max_bytes: int, wanted: Range | None = None) -> Answer:
        revision = quote(self.commit or self._wanted.revision, safe="")
        path = f"{self._wanted.repository}/resolve/{revision}/{quote(name)}"
        return self._get(path, name, max_bytes=max_bytes, wanted=wanted)

    def _get(self, path: str, file: str = "", *, max_bytes: int, wanted: Range | None = None) -> Answer:
        url, token = f"{self._hub.endpoint}/{path}", self._hub.token
        answer = self._http.get(url, headers=_HEADERS, token=token, wanted=wanted, max_bytes=max_bytes)
        if answer.status != 200 and not (wanted and answer.status == 206):
            raise failure(answer, self._hub, self._wanted, file)
        return answer


def _is_file_name(name: Any) -> TypeGuard[str]:
    """Return True for a path that stays in its repository."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= 1000
        and name.isprintable()
        and "\\" not in name
        and not {"", ".", ".."} & set(name.split("/"))
    )


def failure(answer: Answer, hub: Hub, wanted: CheckpointName, file: str = "") -> CouldNotFetch:
    """Return what an answer with an error means; the hub names the reason in `X-Error-Code`."""
    status, code, said = (
        answer.status,
        answer.headers.get("x-error-code", ""),
        answer.headers.get("x-error-message", ""),
    )
    name, host, page = wanted.repository, hub.host, f"{hub.endpoint}/{wanted.repository}"
    when = "" if (seconds := retry_after(answer.headers)) is None else f"; it takes them again in {seconds} seconds"
    is_gated, is_not_found = code == "GatedRepo", status in (401, 404) or code == "RepoNotFound"
    meanings: tuple[tuple[bool, Reason, str, tuple[str, ...]], ...] = (
        (is_gated and bool(hub.token), Reason.GATED, f"{name} is gated, and its publisher has not accepted the account of the token",
         (f"ask for access on {page}, or set HF_TOKEN to a token that has it",)),
        (is_gated, Reason.GATED, f"{name} is gated: only accounts that its publisher accepted may read it, and there is no token",
         (f"ask for access on {page}, and set HF_TOKEN; the token of `hf auth login` is read too",)),
        (status == 404 and code == "RevisionNotFound", Reason.REVISION_NOT_FOUND,
         f"{name} on {host} has no branch, tag or commit {wanted.revision}", ("correct the revision, or leave it out",)),
        (status == 404 and bool(file), Reason.FILE_NOT_FOUND, f"{name} on {host} lists {file} but does not have it", ()),
        (status == 401 and "credentials" in said.lower(), Reason.GATED, f"{host} does not accept the token",
         ("set HF_TOKEN to a valid token, or unset it for a public model",)),
        (is_not_found and bool(hub.token), Reason.NOT_FOUND, f"{host} has no model {name} that the account of the token may read",
         ("correct the name", "set HF_TOKEN to a token that may read it")),
        (is_not_found, Reason.NOT_FOUND, f"{host} has no public model {name}: there is none, or it is private and there is no token",
         ("correct the name", "set HF_TOKEN if it is private; the token of `hf auth login` is read too")),
        (status in (403, 407, 451), Reason.GATED,
         f"{host} refuses access to {name}: HTTP {status}{f' ({said[:200]})' if said else ''}",
         ("set HF_TOKEN to a token that may read it",)),
        (status == 429, Reason.RATE_LIMITED, f"{host} takes no more requests (HTTP 429){when}",
         ("try again later", *(() if hub.token else ("set HF_TOKEN: accounts may ask more often",)))),
        (True, Reason.UNREACHABLE, f"{host} answers with HTTP {status}", REACH),
    )  # fmt: skip
    return next(CouldNotFetch(reason, words, *remedies) for holds, reason, words, remedies in meanings if holds)
