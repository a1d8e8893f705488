"""Report of `kvgate check` in one shape for every output: items with placed findings, and unreadable documents."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from kvgate.api import KIND, field_path
from kvgate.cli.check.checked import Checked
from kvgate.cli.exits import Exit
from kvgate.documents.discovery import Why
from kvgate.judge.assess import Assessment, Decision
from kvgate.manifests import Broken, Document
from kvgate.manifests.judging.judged import JudgedEngine
from kvgate.record import record
from kvgate.rules.finding import Finding, Severity
from kvgate.vllm.arguments import Located

_NOT_UNDERSTOOD = Finding(
    rule="NotUnderstood",
    severity=Severity.INFO,
    field="",
    message="this speaks of vLLM, and kvgate finds no engine in it",
    remediation="check what it is rendered to, or the object that runs the engine",
)
_VALUES_HELP = "if these are values of a chart, render it: helm template CHART | kvgate check -"


@record
class Ignored:
    """Reason why a finding does not count."""

    reason: str
    by: str
    """`comment`, `configuration` or `baseline`."""


@record
class Placed:
    """A finding with its place."""

    finding: Finding
    file: str
    line: int
    column: int
    path: str
    ignored: Ignored | None = None

    @property
    def rule(self) -> str:
        return self.finding.rule


@record
class Item:
    """One InferenceDeployment, one engine of another platform, or one document that was not understood."""

    document: Document
    line: int
    path: str
    kind: str
    name: str
    namespace: str
    platform: str
    verdict: str | None
    """None where there is nothing to judge."""
    accelerator: str | None = None
    vllm_version: str | None = None
    assumed: tuple[str, ...] = ()
    told: tuple[Placed, ...] = ()
    """All findings, those that are ignored too."""
    checked: Checked | None = None
    """Decision about one of our own objects, and all that goes with it."""
    judged: JudgedEngine | None = None

    @property
    def findings(self) -> tuple[Placed, ...]:
        """Those that count."""
        return tuple(placed for placed in self.told if not placed.ignored)

    @property
    def assessment(self) -> Assessment | None:
        """None where nothing could be asked."""
        judged = self.checked or self.judged
        return judged.assessment if judged else None

    @property
    def is_refused(self) -> bool:
        """True for an object of ours that the policy refuses, and for another platform's engine that does not start."""
        return self._does_not_pass and not self.is_pardoned

    @property
    def is_pardoned(self) -> bool:
        """It would be refused, and every error is ignored for a reason that somebody gave."""
        errors = [placed for placed in self.told if placed.finding.severity is Severity.ERROR]
        return self._does_not_pass and bool(errors) and all(placed.ignored for placed in errors)

    @property
    def _does_not_pass(self) -> bool:
        return self.checked.decision is Decision.REFUSE if self.checked else self.verdict == "DoesNotFit"

    @property
    def is_decided(self) -> bool:
        return self._does_not_pass or self.verdict not in (None, "Unknown")

    @property
    def subject(self) -> str:
        """The engine in one phrase: `serving/llama`, `kserve llama on L4-24GB`."""
        name = self.name or "(no name)"
        if self.checked:
            return f"{self.namespace}/{name}"
        where = f" on {self.accelerator}" if self.accelerator else ""
        return f"{self.platform} {name}{where}" if self.judged else self.kind


@record
class Report:
    """Everything of one run."""

    items: tuple[Item, ...]
    broken: tuple[Placed, ...]
    """Unreadable documents, also those that are ignored."""
    num_others: int
    """Documents that have nothing to do with vLLM."""
    paths: tuple[str, ...]
    fail_on: Severity = Severity.ERROR
    """Severity from which on the exit code is 1."""
    num_unneeded: int = 0
    """Entries of the baseline that nothing matches any more."""
    passed_over: Mapping[Why, int] = field(default_factory=dict)
    """Files in the folders that were not read, by reason."""

    @property
    def unreadable(self) -> tuple[Placed, ...]:
        return tuple(placed for placed in self.broken if not placed.ignored)

    @property
    def num_ignored(self) -> int:
        told = [placed for item in self.items for placed in item.told]
        return sum(placed.ignored is not None for placed in (*told, *self.broken))

    @property
    def exit_code(self) -> Exit:
        """1 for a refusal or (where asked) a warning; 2 where nothing at all could be decided."""
        told = [placed for item in self.items for placed in item.findings]
        decided = any(item.is_decided for item in self.items)
        warned = self.fail_on is Severity.WARNING and any(p.finding.severity is not Severity.INFO for p in told)
        if any(item.is_refused for item in self.items) or warned or (decided and self.unreadable):
            return Exit.FINDINGS
        return Exit.FITS if decided else Exit.UNDECIDED


def of_ours(checked: Checked) -> Item:
    """An InferenceDeployment, by its policy."""
    document, subject = checked.subject.document, checked.subject
    spec = subject.deployment.spec if subject.deployment else None
    return Item(
        document=document,
        line=document.position.line,
        path="",
        kind=KIND,
        name=subject.name,
        namespace=subject.namespace,
        platform="kvgate",
        verdict=checked.verdict,
        accelerator=spec.accelerator.type if spec else None,
        vllm_version=spec.vllm.version if spec else None,
        told=tuple(_placed(document, finding, field_path(finding.field)) for finding in checked.findings),
        checked=checked,
    )


def of_engine(judged: JudgedEngine) -> Item:
    """An engine of another platform, by vLLM's own start condition."""
    engine = judged.engine
    document = engine.document
    return Item(
        document=document,
        line=document.position_of(engine.path).line,
        path=engine.path,
        kind=document.kind or "values",
        name=engine.name,
        namespace=engine.namespace,
        platform=engine.platform,
        verdict=judged.verdict.value,
        accelerator=judged.accelerator,
        vllm_version=judged.vllm_version,
        assumed=judged.assumed,
        told=tuple(_located(document, located) for located in judged.findings),
        judged=judged,
    )


def of_document(document: Document) -> Item:
    """Something about vLLM that no reader understands: never silence."""
    finding = _NOT_UNDERSTOOD if document.kind else replace(_NOT_UNDERSTOOD, remediation=_VALUES_HELP)
    return Item(
        document=document, line=document.position.line, path="", kind=document.kind or "values", name="", namespace="",
        platform="unknown", verdict=None, told=(_placed(document, finding, ""),),
    )  # fmt: skip


def of_broken(item: Broken) -> Placed:
    """Place the finding of an unreadable document."""
    position = item.position
    return Placed(
        finding=item.finding, file=item.file, line=position.line, column=position.column, path=item.finding.field
    )


def _placed(document: Document, finding: Finding, path: str) -> Placed:
    return _located(document, Located(finding=finding, path=path))


def _located(document: Document, located: Located) -> Placed:
    position = document.position_of(located.path, located.line)
    return Placed(
        finding=located.finding, file=document.file, line=position.line, column=position.column, path=located.path
    )


def in_order(items: Sequence[Item]) -> tuple[Item, ...]:
    """Sort items by their place, file by file in the order of the input."""
    files = {file: index for index, file in enumerate(dict.fromkeys(item.document.file for item in items))}
    return tuple(sorted(items, key=lambda item: (files[item.document.file], item.line)))
