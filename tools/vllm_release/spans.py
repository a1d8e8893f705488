"""Spans of releases and histories of values: what tables keep instead of one column per release.

What is put in is what one release has; what others have stays as it is. Something that goes and comes back counts as there in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Span:
    """When something was there: from `since` until before `removed_in`, or until now."""

    since: Any
    removed_in: Any = None

    def holds(self, release: Any, releases: Sequence[Any]) -> bool:
        """True where the release has it; both ends are among `releases`."""
        index = releases.index(release)
        return releases.index(self.since) <= index and (
            self.removed_in is None or index < releases.index(self.removed_in)
        )


Spans = dict[str, Span]


def put_names(spans: Mapping[str, Span], present: Collection[str], release: Any, releases: Sequence[Any]) -> Spans:
    """The spans with exactly these names in the release."""
    found = {name: _with(spans.get(name), release, releases) for name in present}
    for name, span in spans.items():
        if name not in found and (kept := _without(span, release, releases)):
            found[name] = kept
    return dict(sorted(found.items()))


def _with(span: Span | None, release: Any, releases: Sequence[Any]) -> Span:
    next_one = following(release, releases)
    if span is None:
        return Span(release, next_one)
    index = releases.index(release)
    if index < releases.index(span.since):
        return replace(span, since=release)
    if span.removed_in is not None and index >= releases.index(span.removed_in):
        return replace(span, removed_in=next_one)
    return span


def _without(span: Span, release: Any, releases: Sequence[Any]) -> Span | None:
    """At either end the span gets shorter; in the middle it stays."""
    if not span.holds(release, releases):
        return span
    next_one = following(release, releases)
    if span.since == release:
        return None if next_one in (None, span.removed_in) else replace(span, since=next_one)
    return replace(span, removed_in=release) if next_one == span.removed_in else span


def following(release: Any, releases: Sequence[Any]) -> Any:
    """The next one that was read; None after the newest."""
    index = releases.index(release) + 1
    return releases[index] if index < len(releases) else None


def previous(release: Any, releases: Sequence[Any]) -> Any:
    """The one before that was read; None before the oldest."""
    index = releases.index(release) - 1
    return releases[index] if index >= 0 else None


# Histories


History = list[list[Any]]
"""[since, value], oldest first."""


def put_value(
    history: Sequence[Sequence[Any]], span: Span, value: Any, release: Any, releases: Sequence[Any], absent: Any = None
) -> History:
    """The history with that value in the release; `absent` is the value that needs no writing where it is the only one."""
    within = [each for each in releases if span.holds(each, releases)]
    values = [value if each == release else value_at(history, each, releases, absent) for each in within]
    return written_history(within, values, absent)


def written_history(releases: Sequence[Any], values: Sequence[Any], absent: Any = None) -> History:
    """Write each value that differs from the one before it."""
    starts = [i for i in range(len(values)) if i == 0 or not _same(values[i], values[i - 1])]
    return [] if len(starts) == 1 and _same(values[0], absent) else [[releases[i], values[i]] for i in starts]


def value_at(history: Sequence[Sequence[Any]], release: Any, releases: Sequence[Any], absent: Any = None) -> Any:
    """The value of a release; before the first entry, the first one."""
    if not history:
        return absent
    index = releases.index(release)
    known = [value for since, value in history if releases.index(since) <= index]
    return known[-1] if known else history[0][1]


def _same(one: Any, other: Any) -> bool:
    """0 is not false, and 1.0 is 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
