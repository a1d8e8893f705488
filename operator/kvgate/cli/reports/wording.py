"""Outcomes, sums and changes in words for people: text, Markdown and GitHub say the same."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from kvgate.budget import CacheFigures, Verdict
from kvgate.budget.ground.units import format_gib
from kvgate.cli.provenance import Provenance
from kvgate.cli.reports.report import Item, Report, all_results, counting_results
from kvgate.cli.terminal import COLOUR_OF, some_of
from kvgate.documents.discovery import Why
from kvgate.documents.origins import Unrendered
from kvgate.findings.finding import Finding, Rule, Severity
from kvgate.judgement.assessment import NOT_JUDGED, Decision
from kvgate.judgement.summary import answer_text, judged_text, shortened, verdict_text
from kvgate.rules.command_line import INVALID_SETTING, RUNS_ON_CPU, VARIABLE_UNKNOWN
from kvgate.rules.facts import (
    INVALID_MODEL_CONFIG,
    UNKNOWN_ACCELERATOR,
    UNKNOWN_DRAFT,
    UNKNOWN_MODEL,
    UNKNOWN_VERSION,
)
from kvgate.rules.manifests import MODEL_NOT_NAMED
from kvgate.rules.support import UNMODELLED_KIND
from kvgate.vllm.arguments import variable_in

if TYPE_CHECKING:
    from kvgate.cli.reports.difference import ChangedSource, Difference, EngineChange
    from kvgate.cli.reports.records import EffectRecord
    from kvgate.vllm.options import ChangedDefault

_DECISIONS = {
    Decision.ADMIT: ("admitted", "green"),
    Decision.ADMIT_WITH_WARNING: ("admitted with a warning", "yellow"),
    Decision.ADMIT_ADJUSTED: ("admitted after adjustment", "yellow"),
    Decision.SKIPPED: ("admitted, budget skipped", "yellow"),
    Decision.WOULD_REFUSE: ("admitted by the audit mode", "yellow"),
    Decision.REFUSE: ("refused", "red"),
}
_FACTS: Mapping[Rule, tuple[str, str]] = {
    UNKNOWN_MODEL: ("model", "name"),
    INVALID_MODEL_CONFIG: ("model", ""),
    UNKNOWN_DRAFT: ("draft", "name"),
    UNKNOWN_ACCELERATOR: ("GPU", "name"),
    UNKNOWN_VERSION: ("release", ""),
    VARIABLE_UNKNOWN: ("variable", "text"),
    MODEL_NOT_NAMED: ("model", ""),
    INVALID_SETTING: ("setting", ""),
    UNMODELLED_KIND: ("unmodelled part", "kind"),
}
"""Rule about a fact without which nothing is decided → its noun, and the value of its sentence that names it; the first one is told."""

MAX_SKIPPED = 100
"""Paths that were not read and that reports for people name; the JSON names more."""
MAX_REASONS, MAX_NAMED, MAX_REASON = 10, 3, 500
"""Reasons why something is not rendered that are shown; files of one reason; characters of a line."""


def outcome(item: Item) -> tuple[str, str]:
    """Return the outcome in words (`admitted`, `does not start` …) and its colour."""
    if item.is_pardoned:
        return "ignored", "yellow"
    if item.is_disallowed:
        return "not allowed", "red"
    if item.decision:
        return _DECISIONS[item.decision]
    if item.verdict is None:
        return "not understood", "cyan"
    if item.verdict is NOT_JUDGED:
        return "not judged", "cyan"
    judged = judged_text(item.verdict, item.assessment.budget if item.assessment else None)
    return judged.partition(" (")[0], COLOUR_OF[item.verdict]


def verdict_line(item: Item) -> tuple[str, str]:
    """Return the verdict with the decision, and what was judged and how much is left: (`Fits, admitted`, `holds …; 9.3 requests …`)."""
    result = outcome(item)[0]
    if item.verdict is None:
        return (f"not valid, {result}" if item.subject else result), ""
    if item.verdict is NOT_JUDGED:
        reasons = dict.fromkeys(placed.rule for placed in item.all_findings)
        return item.verdict.value, f"{result} ({', '.join(reasons)})" if reasons else result
    has_decision = item.subject or item.is_pardoned or item.is_disallowed
    reason = answer_text(item.assessment) if item.assessment else verdict_text(item.verdict, None)
    if item.verdict is Verdict.UNKNOWN and item.all_findings:
        missing = item.missing_facts
        reason += f" ({', '.join(dict.fromkeys(placed.rule for placed in missing or item.all_findings[:1]))})"
    return f"{item.verdict.value}, {result}" if has_decision else item.verdict.value, reason


def summary(report: Report) -> str:
    """Count the outcomes on one line."""
    ours = [item for item in report.items if item.subject]
    others = [item for item in report.items if not item.subject and not item.is_not_understood]
    num_not_understood = len(report.items) - len(ours) - len(others)
    parts = []
    for items, noun in ((ours, "InferenceDeployment"), (others, "engine")):
        left = [item for item in items if item.verdict in (Verdict.UNKNOWN, NOT_JUDGED) and not item.subject]
        counts = Counter(
            outcome(item)[0] for item in items if item.subject or item.verdict not in (Verdict.UNKNOWN, NOT_JUDGED)
        )
        shares = ", ".join(f"{count} {_plural(words) if count > 1 else words}" for words, count in counts.items())
        told = "; ".join(filter(None, (shares, ", ".join(undecided(left)))))
        parts += [f"{_counted(len(items), noun)}: {told}"] if items else []
    parts = parts or [f"no vLLM engine in {', '.join(report.paths)}"]
    clauses = (
        (
            num_not_understood,
            "document that speaks of vLLM not understood",
            "documents that speak of vLLM not understood",
        ),
        (len(report.unreadable), "document could not be read", "documents could not be read"),
        (report.num_others, "document of other kinds was not judged", "documents of other kinds were not judged"),
        (report.num_ignored, "finding ignored", "findings ignored"),
        (
            report.num_unneeded,
            "entry of the baseline is no longer needed",
            "entries of the baseline are no longer needed",
        ),
    )
    parts += [f"{count} {one if count == 1 else several}" for count, one, several in clauses if count]
    return "; ".join([*parts, *passed_over(report)])


def undecided(items: Sequence[Item]) -> Iterator[str]:
    """Yield `1 not judged (Intel Gaudi)` and `3 Unknown: a model (Org/Name), a variable (TAG), a GPU`."""
    others = [item for item in items if item.verdict is NOT_JUDGED]
    unknown = [item for item in items if item.verdict is Verdict.UNKNOWN]
    if others:
        kinds = list(dict.fromkeys(filter(None, map(_hardware_or_engine, others))))
        yield f"{len(others)} not judged" + (f" ({some_of(kinds, most=MAX_NAMED)})" if kinds else "")
    subjects: dict[str, list[str]] = {}
    for item in unknown:
        noun, name = _missing_fact(item)
        subjects.setdefault(noun, []).append(name)
    if unknown:
        yield f"{len(unknown)} Unknown: {', '.join(starmap(_subject, subjects.items()))}"


def _hardware_or_engine(item: Item) -> str:
    for placed in item.all_findings:
        words = placed.finding.words
        if named := words.value_of("hardware") or words.value_of("engine"):
            return named.removeprefix("a ").removeprefix("an ")
    return "CPUs" if any(placed.finding.rule == RUNS_ON_CPU for placed in item.all_findings) else ""


def _missing_fact(item: Item) -> tuple[str, str]:
    """Return the noun of the first fact that is missing, and the name of what nobody knows; empty where it has none."""
    findings = [placed.finding for placed in item.missing_facts or item.all_findings]
    rules = [each.rule for each in findings]
    rule = next((rule for rule in _FACTS if rule in rules), rules[0] if rules else None)
    if rule is None:
        return "fact", ""
    noun, value = _FACTS.get(rule, (rule.id, ""))
    name = findings[rules.index(rule)].words.value_of(value)
    if rule == VARIABLE_UNKNOWN:
        return "unseen program" if name.startswith("`") else noun, variable_in(name) or name
    return noun, name


def _subject(noun: str, names: Sequence[str]) -> str:
    """Return `a model (Org/Name)`, `3 models (A, B)`, `a GPU`."""
    named = list(dict.fromkeys(filter(None, names)))
    counted = f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}" if len(names) == 1 else f"{len(names)} {noun}s"
    return counted + (f" ({some_of(named, most=MAX_NAMED)})" if named else "")


def hidden(report: Report) -> Iterator[str]:
    """Yield one clause about the findings that reports for people leave out; nothing where all are shown."""
    if count := sum(len(item.findings) - len(report.shown(item)) for item in report.items):
        least = Severity.INFO if report.show is Severity.WARNING else Severity.WARNING
        noun = least.value if report.show is Severity.WARNING else "finding"
        verb, them = ("is", "it") if count == 1 else ("are", "them")
        yield f"{_counted(count, noun)} {verb} not shown (--show {least} shows {them})"


def _plural(words: str) -> str:
    """Return the words about several engines: `start`, `do not hold the workload`."""
    verb, _, rest = words.partition(" ")
    several = {"starts": "start", "holds": "hold", "does": "do"}.get(verb, verb)
    return f"{several} {rest}".rstrip()


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def passed_over(report: Report) -> Iterator[str]:
    """Yield one line about the files that were not read, and those that a file of the checkout names; nothing where all were."""
    named: dict[Why, list[str]] = {}
    for each in report.skipped:
        named.setdefault(each.why, []).append(f"{each.path} by {each.by}" if each.by else str(each.path))
    counts = [
        f"{count} {why.partition('|')[0 if count == 1 else 2]}"
        + (f" ({some_of(named[why], most=MAX_NAMED, count=count)})" if why in named else "")
        for why, count in report.passed_over.items()
    ]
    if counts:
        is_chart = Why.CHART_TEMPLATE in report.passed_over
        render_it = " (render the chart: helm template CHART | kvgate check -)" if is_chart else ""
        yield f"skipped: {', '.join(counts)}{render_it}"


class Note(Struct, frozen=True, kw_only=True):
    """A line of a list for other programs: a finding, or something that changed what was judged, or what counts, and stands in a file."""

    file: str
    line: int
    column: int = 1
    title: str
    """The rule of a finding; else `Provenance`, `Ignored` or `Skipped`."""
    text: str
    severity: Severity = Severity.INFO
    fingerprint: str = ""
    """That of the finding; empty for all else."""


def issues(report: Report) -> Iterator[Note]:
    for result in counting_results(report):
        placed = result.placed
        yield Note(
            file=placed.file,
            line=placed.line,
            column=placed.column,
            title=placed.rule,
            text=result.message,
            severity=placed.finding.severity,
            fingerprint=result.fingerprint,
        )
    yield from notes(report)


def notes(report: Report) -> Iterator[Note]:
    """Yield the files that a verdict rests on beside the manifests, the findings that are ignored, and the paths that are not read."""
    of_engines: dict[Provenance, list[str]] = {each: [] for each in report.sources}
    for item in report.items:
        for source in item.sources:
            if source.file:
                of_engines.setdefault(source, []).append(item.title)
    for source, titles in of_engines.items():
        about = f": {some_of(titles, most=MAX_NAMED)}" if titles else ""
        yield Note(file=source.file, line=source.line, title="Provenance", text=f"{source.text}{about}")
    for result in all_results(report):
        if ignored := result.placed.ignored:
            reason = f"{result.placed.rule} is ignored by {ignored.place}, reason: {ignored.reason}; {result.message}"
            yield Note(file=result.placed.file, line=result.placed.line, title="Ignored", text=reason)
    for each in report.skipped[:MAX_SKIPPED]:
        by = each.by or each.why.partition("|")[0]
        file, _, line = each.by.rpartition(":")
        yield Note(
            file=file or str(each.path), line=int(line or 1), title="Skipped", text=f"{each.path} is not read: {by}"
        )


def unrendered_lines(report: Report) -> Iterator[str]:
    """Yield a line for each reason why charts and kustomizations are not rendered, or not all of them."""
    by_reason: dict[str, list[Unrendered]] = {}
    for each in report.unrendered:
        by_reason.setdefault(each.reason, []).append(each)
    for reason, found in list(by_reason.items())[:MAX_REASONS]:
        files = [f"{each.file}:{each.line}" if each.line > 1 else each.file for each in found]
        detail = f": {found[0].detail}" if found[0].detail else ""
        yield shortened(f"{some_of(files, most=MAX_NAMED)}: {reason}{detail}", MAX_REASON)
    if len(by_reason) > MAX_REASONS:
        yield f"{len(by_reason) - MAX_REASONS} more reasons not to render a chart or a kustomization are in the JSON"


CHANGE_HEAD = ("engine", "verdict", "KV cache tokens", "blocks", "max concurrency", "headroom per GPU")


def change_cells(change: EngineChange) -> Sequence[str]:
    """Return as many cells as CHANGE_HEAD has, each `before → after`."""
    before, after = change.before, change.after
    new_or_removed = f" ({change.kind})" if change.kind in ("new", "removed") else ""
    old, new = before.figures if before else None, after.figures if after else None
    figures = [_arrow(*pair) for pair in zip(_figures(old), _figures(new), strict=True)]
    if old and new and old.num_tokens and new.num_tokens is not None and old.num_tokens != new.num_tokens:
        # the change in percent is that of the tokens alone: the other figures follow from them
        figures[0] += f" ({round(100 * (new.num_tokens - old.num_tokens) / old.num_tokens):+d} %)"
    return change.item.title + new_or_removed, _arrow(_verdict(before), _verdict(after)), *figures


def _verdict(item: Item | None) -> str | None:
    """Return `Fits: starts`, or `Fits, admitted: holds full context (8 requests of 4096 tokens)`."""
    if item is None:
        return None
    if item.verdict is None or item.verdict is NOT_JUDGED:
        return verdict_line(item)[0]
    judged = judged_text(item.verdict, item.assessment.budget if item.assessment else None)
    return ": ".join(filter(None, (verdict_line(item)[0], judged)))


def _figures(figures: CacheFigures | None) -> tuple[str | None, ...]:
    if figures is None:
        return (None,) * 4
    tokens, blocks = (f"{value:,}" if value is not None else "?" for value in (figures.num_tokens, figures.num_blocks))
    times = f"{figures.max_concurrency:.2f}" if figures.max_concurrency is not None else "?"
    headroom = "?"
    if figures.headroom_bytes is not None and figures.headroom_percent is not None:
        headroom = f"{format_gib(figures.headroom_bytes)} ({figures.headroom_percent} %)"
    return tokens, blocks, times, headroom


def _arrow(before: str | None, after: str | None) -> str:
    if before is None or after is None or before == after:
        return after or before or ""
    return f"{before} → {after}"


def effect_cells(effect: EffectRecord) -> tuple[str, str, str]:
    """Return (setting, before → after, the KV cache tokens with this change alone)."""
    before, after = (
        "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for value in (effect.before, effect.after)
    )
    if effect.tokens is None or effect.change_tokens is None:
        return effect.setting, f"{before} → {after}", "not known alone"
    return effect.setting, f"{before} → {after}", f"{effect.tokens:,} ({effect.change_tokens:+,})"


def assumptions(change: EngineChange) -> str:
    """Return what is assumed about facts that the manifest does not state, before → after; empty where nothing is."""
    old, new = (
        "; ".join(each.text for each in item.assumed) if item else None for item in (change.before, change.after)
    )
    return _arrow(*(None if side is None else side or "nothing" for side in (old, new))) if old or new else ""


def gpu_change(change: EngineChange) -> Iterator[tuple[str, str]]:
    """Yield (word, text) about an engine whose GPU a side does not name: where it starts, and where figures are compared."""
    gpus = change.gpus
    if gpus and gpus.starts_on:
        before, after = gpus.starts_on_words
        yield "starts on", f"was {before}, now {after}" if before != after else f"{after}, and others than before"
    if gpus and gpus.gpu:
        yield "figures on", gpus.gpu


def source_change(changed: ChangedSource) -> str:
    """Return `model: from the catalogue → from models.lock:14, differs from the catalogue: 1 layer, not 80 layers`."""
    fact, before, after = changed
    old, new = (each.text.removeprefix(f"{fact} ") if each else "nothing" for each in (before, after))
    return f"{fact}: " + (_arrow(old, new) if old != new else f"{new}, whose content changed")


def defect_change(defect: tuple[bool, Finding]) -> str:
    """Say whether the change brings a known defect of vLLM, or ends it."""
    is_new, finding = defect
    return f"{'into' if is_new else 'out of'} a known defect: {finding.message}"


def release_change(change: EngineChange) -> str:
    """Return `vLLM 0.19.1 → 0.20.0`."""
    old, new = (item.vllm_version if item else None for item in (change.before, change.after))
    return f"vLLM {_arrow(old, new)}"


def default_change(changed: ChangedDefault) -> tuple[str, str]:
    """Return the option, and its default before → after, as it is written on a command line."""

    def written(value: Any) -> str:
        if value is None or value == "":
            return "unset"  # vLLM decides
        return value if isinstance(value, str) else json.dumps(value)

    return changed.flag, _arrow(written(changed.before), written(changed.after))


def difference_summary(difference: Difference) -> str:
    """Count the changes, and those for the worse."""
    kinds = [change.kind for change in difference.changes]
    counts = [f"{kinds.count(kind)} {kind}" for kind in ("changed", "new", "removed", "unchanged") if kind in kinds]
    parts = [f"{_counted(len(kinds), 'engine')}: {', '.join(counts)}" if kinds else "no vLLM engine in OLD or NEW"]
    worse = sum(change.is_worse for change in difference.changes)
    if worse:
        parts.append(f"{worse} got worse: {'it' if worse == 1 else 'they'} would not start, or would be refused")
    if difference.unreadable:
        parts.append(f"{_counted(len(difference.unreadable), 'document')} could not be read")
    return "; ".join(parts)
