"""The judgement of an engine whose release or GPU is not certain: each possible one is judged, and all are joined to one.

Releases are worlds of which one holds, and so are GPUs that are named. GPUs that nobody named are a set: the engine fits where it
starts on any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget import AUTO_MAX_MODEL_LEN, Accelerator, Budget, BudgetRequest, Verdict
from kvgate.findings.finding import Located, Place, Severity, any_one, located
from kvgate.judgement.assessment import WORST_FIRST, AcceleratorVerdict, J, OnGpus, joined_worlds, refuse_apart
from kvgate.judgement.assessment import joined as joined_answers
from kvgate.judgement.on_accelerators import joined, memory_needed, smallest_that_starts, verdicts_on
from kvgate.rules.checks import BUDGET_RULES
from kvgate.rules.command_line import RELEASE_DECIDES
from kvgate.statement.engine import Gpus, Releases
from kvgate.vllm.options import releases_read


class Worlds(Struct, Generic[J], frozen=True, kw_only=True):
    """The worlds that an engine may be in: each of its releases with each of its GPUs."""

    releases: Releases
    gpus: Gpus
    judged_in: Callable[[str, str | None], J]
    """(release, name of the GPU) → the judgement in this one world."""
    version_path: str = ""
    """Path of the field that states the release."""

    def judged(self) -> J:
        if self.gpus.is_open:
            return self._on_any()
        if self.gpus.name is not None and (self.gpus.others or self.gpus.may_be_unnamed):
            return self._on_several()
        return self._on(self.gpus.name)

    def _on(self, gpu: str | None) -> J:
        return joined_ends(self._at_ends(gpu), self.version_path)

    def _at_ends(self, gpu: str | None) -> list[J]:
        """Judge with the newest of the possible releases, and with the oldest where there are several.

        Where both refuse, the newest other release that does not stands for the oldest: a refusal must hold for all that it may be.
        """
        releases = self.releases
        high = self.judged_in(releases.high, gpu)
        ends = [high] if releases.is_one else [high, self.judged_in(releases.low, gpu)]
        if any(each.verdict is not Verdict.DOES_NOT_FIT for each in ends):
            return ends
        others = (self.judged_in(each, gpu) for each in reversed(releases_read()) if releases.may_be(each))
        other = next((each for each in others if each.verdict is not Verdict.DOES_NOT_FIT), None)
        return [high, other] if other else ends

    def _on_any(self) -> J:
        """Judge an engine whose GPU nothing names: it fits where it starts on any.

        Its findings hold on the smallest on which it starts, and on the largest.
        """
        gpus, largest = self.gpus, self.gpus.largest
        ends = self._at_ends(largest)
        judged, verdicts = joined_ends(ends, self.version_path), _verdicts_on(ends, gpus.possible(gpus.vendor))
        if not verdicts:
            return judged
        name = smallest_that_starts(verdicts) or largest
        if name != largest:
            on_largest = {key_of(each): each for each in judged.findings}
            judged = self._on(name)
            common = [(each, on_largest[key_of(each)]) for each in judged.findings if key_of(each) in on_largest]
            kept = (
                each if each.finding.words == other.finding.words else _only_on(name, each) for each, other in common
            )
            judged = replace(judged, findings=tuple(kept))
        elif judged.verdict is Verdict.DOES_NOT_FIT:
            judged = replace(judged, findings=tuple(_on_none(each, largest, gpus) for each in judged.findings))
            other = "amd" if gpus.vendor == "nvidia" else "nvidia"
            if (
                not gpus.is_vendor_stated
                and not gpus.among
                and smallest_that_starts(_verdicts_on(ends, gpus.possible(other)))
            ):
                judged = judged.softened()
        budget = _budget_of(judged)
        return _with_gpus(
            judged,
            OnGpus(
                verdicts=verdicts,
                needed=memory_needed(budget) if budget else None,
                judged_on=name,
                is_whole=not gpus.among,
            ),
        )

    def _on_several(self) -> J:
        """Judge an engine that may run on several GPUs: the worst counts, and its findings name it.

        It refuses only where the user stated the list: a manifest's own list need not be what the cluster has.
        """
        gpus, ends = self.gpus, self._at_ends(self.gpus.name)
        judged, verdicts = joined_ends(ends, self.version_path), _verdicts_on(ends, gpus.named)
        if not verdicts:
            return judged
        by_verdict = sorted(verdicts, key=lambda each: WORST_FIRST.index(each.verdict))
        worst, best = by_verdict[0], by_verdict[-1]
        worlds = [judged]
        if worst.verdict is not best.verdict:
            worlds = [self._on(worst.name), self._on(best.name)]
            common = set(map(key_of, worlds[1].findings))
            findings = (each if key_of(each) in common else _only_on(worst.name, each) for each in worlds[0].findings)
            judged = replace(worlds[0], findings=tuple(findings))
        elif gpus.may_be_unnamed and judged.verdict is Verdict.DOES_NOT_FIT:  # a node may have a GPU that holds it
            worlds.append(self._on_any())
        if not gpus.must_start_on_all:
            judged = joined_worlds(judged, worlds)
            judged = judged if judged.verdict is Verdict.DOES_NOT_FIT else judged.softened()
        return _with_gpus(judged, OnGpus(verdicts=verdicts))


def _with_gpus(judged: J, found: OnGpus) -> J:
    assessment = replace(judged.assessment, on_gpus=found) if judged.assessment else None
    return replace(judged, assessment=assessment)


def _budget_of(judged: J) -> Budget | None:
    return judged.assessment.budget if judged.assessment else None


def _verdicts_on(ends: Sequence[J], gpus: Sequence[Accelerator]) -> tuple[AcceleratorVerdict, ...]:
    """Return the verdict on each GPU; nothing where the model or a setting is not known."""
    budgets = [budget for end in ends if (budget := _budget_of(end))]
    if len(budgets) < len(ends):
        return ()
    tables = [verdicts_on(asked(budget), gpus) for budget in budgets]
    return tuple(joined(tables[-1], tables[0])) if len(tables) > 1 else tables[0]


def asked(budget: Budget) -> BudgetRequest:
    """Return the question of a budget. A length that vLLM chose on one GPU is open on another one."""
    request = budget.request
    return request if budget.auto_from is None else request.with_settings(max_model_len=AUTO_MAX_MODEL_LEN)


def joined_ends(ends: Sequence[J], version_path: str = "") -> J:
    """Return one judgement of the possible releases: where the two ends differ nothing is certain."""
    high, low = ends[0], ends[-1]
    if len(ends) == 1:
        return high
    findings = list(_joined_findings(low, high))
    if low.verdict is not high.verdict:
        message = (
            f"with vLLM {low.vllm_version} it is {low.verdict.value}, with {high.vllm_version} {high.verdict.value}"
        )
        remedy = any_one("name a release in the image's tag", "give --vllm-version")
        decides = located(RELEASE_DECIDES, Place(name="vllm_version", path=version_path), message, remedy)
        # nothing need be done where no end refuses, and a finding of one release says already what decides
        is_refused = Verdict.DOES_NOT_FIT in (low.verdict, high.verdict)
        common = set(map(key_of, high.findings)) & set(map(key_of, low.findings))
        is_explained = any(
            key_of(each) not in common and each.finding.severity is not Severity.INFO for each in findings
        )
        is_quiet = is_explained or not is_refused
        findings.append(replace(decides, finding=decides.finding.noted()) if is_quiet else decides)
    return replace(joined_worlds(high, (low, high)), findings=tuple(findings))


def _joined_findings(low: J, high: J) -> Iterator[Located]:
    """Join the findings of two releases. A finding that only one of them has names its release, and is no error unless both refuse, each
    for another reason."""
    older, newer = {key_of(each): each for each in low.findings}, {key_of(each): each for each in high.findings}
    common = [each for key, each in newer.items() if key in older and older[key].finding.severity is Severity.ERROR]
    is_said = any(each.finding.severity is Severity.ERROR for each in common)  # what holds in both is the refusal
    both_refuse = refuse_apart(joined_answers([low.world, high.world]).verdict, is_error_common=is_said)
    for key, each in newer.items():
        is_milder = key in older and older[key].finding.severity is not each.finding.severity
        yield each if key in older and not is_milder else _only_with(high.vllm_version, each, both_refuse=both_refuse)
    for key, each in older.items():
        if key not in newer and each.finding.severity is not Severity.INFO:
            yield _only_with(low.vllm_version, each, both_refuse=both_refuse)


def key_of(each: Located) -> tuple[str, str, str, str, int]:
    """Return what two findings about the same thing have in common."""
    return each.finding.rule.id, each.finding.field, each.finding.topic, each.path, each.line


def _only_with(release: str, each: Located, *, both_refuse: bool) -> Located:
    """Soften a finding of one release, because nobody knows that it is this one."""
    if each.finding.severity is Severity.INFO:
        return each
    finding = each.finding if both_refuse else each.finding.softened()
    worded = finding.with_words("with vLLM {release}: {message}", release=release)
    return replace(each, finding=worded)


def _only_on(gpu: str, each: Located) -> Located:
    return replace(each, finding=each.finding.with_words("on {gpu}: {message}", gpu=gpu))


def _on_none(each: Located, gpu: str, gpus: Gpus) -> Located:
    """Say of a want of memory that no GPU has it."""
    if each.finding.rule not in BUDGET_RULES:
        return each
    none = "none of these GPUs" if gpus.among else "no GPU of the catalogue"
    message = f"{none} holds it; on {{gpu}}, the largest, {{message}}"
    return replace(each, finding=each.finding.with_words(message, gpu=gpu))
