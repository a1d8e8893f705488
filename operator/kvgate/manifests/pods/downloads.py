"""Init containers that download a model: the hub's name of weights that vLLM finds at a path."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.pods.containers import unwrapped
from kvgate.manifests.pods.engine_found import ReaderInput
from kvgate.shell.environment import Room, expanded, variables_of
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import Argument

_SOURCES = ("--source", "--model-uri", "--repo-id", "--repo_id", "--model-id")
_FOLDERS = ("--output-dir", "--local-dir", "--local_dir", "--target-dir")
_MAX_CONTAINERS = 20
"""Init containers of one pod; nobody has more."""
_DOWNLOAD = "download"
"""Command of `hf` and `huggingface-cli`, before the name."""
_IN_PYTHON = pattern(
    r"""snapshot_download\(\s*(?:repo_id\s*=\s*)?(['"])([\w./\-]{3,200})\1[^)]{0,400}?local_dir\s*=\s*(['"])([^'"]{1,400})\3"""
)
_ID = pattern(r"(?:(?:hf|huggingface|ms)://)?[A-Za-z0-9][\w.\-]*/[\w.\-]+", re.ASCII)


def downloaded(given: ReaderInput, pod: Written, place: str) -> Written:
    """Return the name on the hub of what an init container of the pod downloads to a folder; nothing where none does."""
    wanted = place.rstrip("/")
    top = wanted.rpartition("/")[0]
    for container in pod.get("initContainers").items()[:_MAX_CONTAINERS]:
        written = str(container.value)
        if wanted not in written and (not top or top not in written):
            continue
        variables = variables_of(container, given.config_data, shared=given.shared)
        for name, folders in _downloads(given, container, variables):
            if wanted in folders and _ID.fullmatch(name.text):
                return Written(value=name.text, path=name.path)
    return NOTHING


def _downloads(
    given: ReaderInput, container: Written, variables: Mapping[str, Written]
) -> Iterator[tuple[Argument, Sequence[str]]]:
    """Yield (name of a repository, folders that may hold it, without a slash at their ends) of every command."""
    room, words = Room(), list[Argument]()
    for field in (container.get("command"), container.get("args")):
        words += [Argument(text=expanded(item.text, variables, room), path=item.path) for item in field.items()]
    given.shared.take(*(word.text for word in words))  # once for each container that it may download for
    for line in unwrapped(words, variables, shared=given.shared):
        name, folder, own = (
            _after(line, (*_SOURCES, _DOWNLOAD)),
            _after(line, _FOLDERS),
            _after(line, ("--model-name",)),
        )
        if name and folder and folder.text.startswith("/"):
            top, last = folder.text.rstrip("/"), name.text.rpartition("/")[2]
            yield name, (top, f"{top}/{last}", f"{top}/{name.text}", f"{top}/{own.text if own else last}")
    for word in words:
        for match in _IN_PYTHON.finditer(word.text):
            yield Argument(text=match[2], path=word.path), (match[4].rstrip("/"),)


def _after(line: Sequence[Argument], names: Sequence[str]) -> Argument | None:
    """Return the value of the first of these options, behind `=` or in the next word."""
    for word, after in pairwise([*line, Argument(text="", path="")]):
        flag, equals, value = word.text.partition("=")
        if flag in names:
            return Argument(text=value if equals else after.text, path=word.path if equals else after.path)
    return None
