"""The records that every output of `kvgate check` is written from: engines, their findings, and unreadable documents."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from kvgate.api.conditions import Reason
from kvgate.budget import Budget, CacheFigures, Guarantee, Verdict
from kvgate.cli.exits import Exit
from kvgate.cli.provenance import Provenance
from kvgate.cli.reports.placed import Ignored, Placed, shown_file
from kvgate.documents.discovery import CHART_FILE, PassedOver, Why
from kvgate.documents.origins import Unrendered
from kvgate.documents.reading import STDIN_NAME
from kvgate.documents.written import Written
from kvgate.findings.finding import Scope, Severity
from kvgate.judgement import summary
from kvgate.judgement.assessment import NO_FIGURES, NOT_JUDGED, Assessment, Confidence, Decision, Unjudged
from kvgate.manifests import Document, Subject
from kvgate.manifests.inputs import NO_NAMESPACE
from kvgate.manifests.judging.judgement import Assumed, JudgedEngine
from kvgate.rules.command_line import INVALID_SETTING, VARIABLE_UNKNOWN
from kvgate.rules.manifests import MODEL_NOT_NAMED
from kvgate.rules.pinned import BUDGET_SKIPPED
from kvgate.rules.repository import UNREADABLE

if TYPE_CHECKING:  # most manifests have no need of pydantic
    from kvgate.api.v1alpha1 import InferenceDeploymentSpec


UNREAD_PLATFORM = "unknown"


class Item(Struct, frozen=True, kw_only=True):
    """One InferenceDeployment, one engine of another platform, or one document that was not understood."""

    document: Document
    line: int
    path: str
    kind: str
    name: str
    namespace: str
    platform: str
    verdict: Verdict | Unjudged | None
    """None where there is nothing to judge."""
    accelerator: str | None = None
    vllm_version: str | None = None
    assumed: tuple[Assumed, ...] = ()
    all_findings: tuple[Placed, ...] = ()
    """All findings, also those that are ignored."""
    rendered_line: int = 0
    """Line of the rendered stream, where the file is a template."""
    subject: Subject | None = None
    assessment: Assessment | None = None
    """None where the engine could not be judged, or its schema refuses it."""
    engine: JudgedEngine | None = None
    sources: tuple[Provenance, ...] = ()

    @property
    def provenance(self) -> tuple[Provenance, ...]:
        """Everything that the verdict rests on beside the manifest, also what makes findings not count."""
        ignores = (
            Provenance(
                fact=f"ignore {placed.rule}", source=ignored.by, place=ignored.place, detail=f"reason: {ignored.reason}"
            )
            for placed, ignored in self.ignored
        )
        return (*self.sources, *dict.fromkeys(ignores))

    @property
    def file(self) -> str:
        """File of the engine for people: the template or the resource that it was rendered from."""
        return self.document.place_of(self.path).file

    @property
    def is_not_understood(self) -> bool:
        """True for a document that speaks of vLLM and holds no engine that kvgate reads."""
        return self.platform == UNREAD_PLATFORM

    @property
    def source(self) -> str:
        """The kustomization, or the values, that the engine was rendered by; empty where its file says it already."""
        file = self.document.file
        return file if file not in (self.file, STDIN_NAME) and Path(file).name != CHART_FILE else ""

    @property
    def findings(self) -> tuple[Placed, ...]:
        """The findings that count."""
        return tuple(placed for placed in self.all_findings if not placed.ignored)

    @property
    def ignored(self) -> tuple[tuple[Placed, Ignored], ...]:
        """The findings that do not count, each with the reason."""
        return tuple((placed, placed.ignored) for placed in self.all_findings if placed.ignored)

    @property
    def effective(self) -> Budget | None:
        """Budget of the settings that are rendered."""
        return self.assessment.effective if self.assessment else None

    @property
    def identity(self) -> tuple[Sequence[str], str, Written]:
        """The files, the name and the object by which mappings of the configuration find it."""
        root = self.engine.engine.root if self.engine else Written(value=self.document.load())
        return self.document.files, self.name, root

    @property
    def spec(self) -> "InferenceDeploymentSpec | None":
        """Spec of a valid InferenceDeployment."""
        return self.subject.deployment.spec if self.subject and self.subject.deployment else None

    @property
    def decision(self) -> Decision | None:
        """Decision about an InferenceDeployment: one that its schema refuses is refused."""
        decided = self.assessment.decision if self.assessment else Decision.REFUSE
        return decided if self.subject else None

    @property
    def reason(self) -> tuple[Reason, str]:
        """Reason and message of the condition Accepted, in the words of the webhook and the controller."""
        if self.assessment is None:
            problems = self.subject.findings if self.subject else ()
            return Reason.INVALID_SPEC, "; ".join(finding.message for finding in problems)
        return summary.accepted(self.assessment)[1:]

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee that was judged; None where there is nothing to judge."""
        if self.assessment:
            return self.assessment.guarantee
        return Guarantee.STARTUP if self.engine and self.verdict is not NOT_JUDGED else None

    @property
    def figures(self) -> CacheFigures:
        """CacheFigures of the engine as it is rendered: after the adjustment where a policy adjusts."""
        return self.assessment.figures if self.assessment else NO_FIGURES

    @property
    def is_refused(self) -> bool:
        """True for an InferenceDeployment that the policy refuses, and for an engine of another platform that does not start."""
        return (self.does_not_pass and not self.is_pardoned) or self.is_disallowed

    @property
    def is_pardoned(self) -> bool:
        """True if it would be refused, and every error, or every warning where there is no error, is ignored for a stated reason."""
        severities = {placed.finding.severity for placed in self.all_findings} - {Severity.INFO}
        worst = Severity.ERROR if Severity.ERROR in severities else Severity.WARNING
        reasons = [placed for placed in self.all_findings if placed.finding.severity is worst]
        return self.does_not_pass and bool(reasons) and all(placed.ignored for placed in reasons)

    @property
    def is_disallowed(self) -> bool:
        """True where it would run, and does not meet a requirement of the configuration."""
        errors = (placed.finding.rule for placed in self.findings if placed.finding.severity is Severity.ERROR)
        return not self.does_not_pass and any(rule.scope is Scope.REQUIREMENTS for rule in errors)

    @property
    def is_unknown(self) -> bool:
        """True where the verdict is Unknown or a requirement is not judged, and nobody answers for the missing facts."""
        if self.verdict is Verdict.UNKNOWN:
            missing = self.missing_facts or self.all_findings
            return not missing or any(not each.ignored for each in missing)
        return any(each.rule == "RequirementNotJudged" for each in self.findings)

    @property
    def missing_facts(self) -> tuple[Placed, ...]:
        """The findings that name the facts without which the verdict is Unknown."""
        scopes = (Scope.FACTS, Scope.REQUIREMENTS)
        named = [each for each in self.all_findings if each.finding.rule.scope in scopes]
        return tuple(named) or tuple(each for each in self.all_findings if each.finding.rule in _NAME_WHAT_IS_MISSING)

    @property
    def is_judged(self) -> bool:
        """True for an engine that there is something to judge about: a vLLM engine on GPUs, also where facts are missing."""
        return not self.is_not_understood and self.verdict is not NOT_JUDGED

    @property
    def does_not_pass(self) -> bool:
        """True where the policy refuses it, or where it does not start."""
        if self.subject:
            return self.decision is Decision.REFUSE
        is_unsure = self.assessment is not None and self.assessment.confidence is not Confidence.KNOWN
        errors = (placed for placed in self.all_findings if placed.finding.severity is Severity.ERROR)
        return self.verdict is Verdict.DOES_NOT_FIT and (not is_unsure or any(errors))

    @property
    def is_decided(self) -> bool:
        return self.does_not_pass or self.verdict not in (None, Verdict.UNKNOWN, NOT_JUDGED)

    @property
    def title(self) -> str:
        """The engine in one phrase: `serving/llama`, `kserve serving/llama on L4-24GB`."""
        name = self.name or "(no name)"
        if self.subject:
            return f"{self.namespace}/{name}"
        where = f" on {self.accelerator}" if self.accelerator else ""
        if self.namespace not in ("", NO_NAMESPACE):
            name = f"{self.namespace}/{name}"
        by = f" ({shown_file(self.source)})" if self.source else ""
        return f"{self.platform} {name}{where}{by}" if self.engine else f"{self.kind}{by}"


_NAME_WHAT_IS_MISSING = (MODEL_NOT_NAMED, VARIABLE_UNKNOWN, INVALID_SETTING)
"""Rules of other scopes that name a fact without which nothing can be judged."""


class Report(Struct, frozen=True, kw_only=True):
    """Everything that one run found."""

    items: tuple[Item, ...]
    broken: tuple[Placed, ...]
    """Unreadable documents, also those that are ignored."""
    num_others: int
    """Documents that have nothing to do with vLLM."""
    paths: tuple[str, ...]
    fail_on: frozenset[str] = frozenset()
    """`warning`, `unknown`, `skipped`: what makes the exit code 1 beside errors."""
    show: Severity = Severity.WARNING
    """Least severity that reports for people show."""
    pools: tuple[str, ...] = ()
    """GPUs of the node pools that the configuration states."""
    num_unneeded: int = 0
    """Entries of the baseline that match no finding any more."""
    passed_over: Mapping[Why, int] = field(default_factory=dict)
    """Files in the folders that were not read, by reason."""
    unrendered: tuple[Unrendered, ...] = ()
    """Charts and kustomizations that are not rendered, or not all of them."""
    skipped: tuple[PassedOver, ...] = ()
    """Paths that a file of the checkout keeps from being read."""
    sources: tuple[Provenance, ...] = ()
    """Settings of a file that concern the whole report."""

    @property
    def unreadable(self) -> tuple[Placed, ...]:
        """The unreadable documents that count."""
        return tuple(placed for placed in self.broken if not placed.ignored)

    def shown(self, item: Item) -> tuple[Placed, ...]:
        """The findings of an engine for people: those that are severe enough, and all where they say why nothing was decided."""
        if item.is_not_understood and self.show is not Severity.INFO and self.has_engine:
            return ()
        if not item.is_decided:
            return item.findings
        severe = list(Severity)[: list(Severity).index(self.show) + 1]
        return tuple(placed for placed in item.findings if placed.finding.severity in severe)

    @property
    def has_engine(self) -> bool:
        return any(not item.is_not_understood for item in self.items)

    @property
    def num_ignored(self) -> int:
        return sum(len(item.ignored) for item in self.items) + len(self.broken) - len(self.unreadable)

    @property
    def exit_code(self) -> Exit:
        """1 for a refusal, for what cannot be read, or for what `fail_on` names.

        2 where there is no engine, or where there are engines to judge, none of them could be, and nobody answers for that.
        """
        counting = [placed for item in self.items for placed in item.findings]
        named = {str(Path(path)) for path in self.paths}
        decided = any(item.is_decided for item in self.items)
        # a PATH that cannot be opened is a slip on the command line, beside which nothing may have been judged
        beside = [
            each for each in self.unreadable if decided or each.finding.rule != UNREADABLE or each.file not in named
        ]
        fails = any(item.is_refused for item in self.items) or bool(beside)
        fails |= "warning" in self.fail_on and any(p.finding.severity is not Severity.INFO for p in counting)
        fails |= "unknown" in self.fail_on and any(item.is_unknown for item in self.items)
        fails |= "skipped" in self.fail_on and any(placed.finding.rule == BUDGET_SKIPPED for placed in counting)
        if fails:
            return Exit.FINDINGS
        judged = [item for item in self.items if item.is_judged]
        is_open = bool(self.unreadable) or any(item.is_unknown for item in judged)
        return Exit.UNDECIDED if (is_open and not decided) or not self.has_engine else Exit.FITS


class Result(Struct, frozen=True, kw_only=True):
    """One finding as other programs take it, and as a baseline knows it."""

    placed: Placed
    item: Item | None
    """None where the document could not be read."""
    fingerprint: str
    """The same when lines move and numbers change."""

    @property
    def message(self) -> str:
        """Sentence with the engine, the finding and the remedy."""
        finding = self.placed.finding
        title = f"{self.item.title}: " if self.item else ""
        place = f" (line {self.placed.rendered_line} of the rendered chart)" if self.placed.rendered_line else ""
        return f"{title}{finding.message}{place}" + (f"; {finding.remediation}" if finding.remediation else "")


def counting_results(report: Report) -> Iterator[Result]:
    """Yield every finding that counts, in the order of the files; what could not be read comes last."""
    return (result for result in all_results(report) if not result.placed.ignored)


def all_results(report: Report) -> Iterator[Result]:
    """Yield every finding, also those that are ignored: the fingerprints number equal findings of one engine."""
    from hashlib import sha256  # some milliseconds, which a report without findings does not need

    seen: Counter[str] = Counter()
    in_engines = [(item, placed) for item in report.items for placed in item.all_findings]
    for item, placed in (*in_engines, *((None, placed) for placed in report.broken)):
        # whose finding it is, of which rule, about which setting: lines and numbers are no part of it
        engine = (item.kind, item.namespace, item.name, item.path) if item else ()
        parts = (placed.rule, shown_file(placed.file), *engine, placed.finding.field)
        mark = sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:24]
        seen[mark] += 1
        yield Result(placed=placed, item=item, fingerprint=f"{mark}:{seen[mark]}")
