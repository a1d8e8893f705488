"""What `kvgate check` found, in one shape for every output: items with placed findings, and what could not be read."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvgate.api import KIND
from kvgate.api.fields import field_path
from kvgate.cli.checked import Checked
from kvgate.cli.exits import Exit
from kvgate.engine import Decision
from kvgate.manifests import Broken, Document
from kvgate.manifests.judged import JudgedEngine
from kvgate.manifests.located import Located
from kvgate.rules.finding import Finding, Severity

_NOT_UNDERSTOOD = Finding(
    rule="NotUnderstood",
    severity=Severity.INFO,
    field="",
    message="this speaks of vLLM, and kvgate finds no engine in it",
    remediation="check what it is rendered to, or the object that runs the engine",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A finding with its place."""

    finding: Finding
    file: str
    line: int
    column: int
    path: str

    @property
    def rule(self) -> str:
        return self.finding.rule


@dataclass(frozen=True, kw_only=True)
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
    findings: tuple[Placed, ...] = ()
    checked: Checked | None = None
    """For our own objects: the decision and all that goes with it."""
    judged: JudgedEngine | None = None

    @property
    def is_refused(self) -> bool:
        """Of ours by policy; an engine of another platform that does not start."""
        if self.checked:
            return self.checked.decision is Decision.REFUSE
        return self.verdict == "DoesNotFit"

    @property
    def is_decided(self) -> bool:
        return self.is_refused or self.verdict not in (None, "Unknown")

    @property
    def subject(self) -> str:
        """The engine in one phrase: `serving/llama`, `kserve llama on L4-24GB`."""
        name = self.name or "(no name)"
        if self.checked:
            return f"{self.namespace}/{name}"
        where = f" on {self.accelerator}" if self.accelerator else ""
        return f"{self.platform} {name}{where}" if self.judged else self.kind


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything of one run."""

    items: tuple[Item, ...]
    unreadable: tuple[Placed, ...]
    num_others: int
    """Documents that have nothing to do with vLLM."""
    paths: tuple[str, ...]

    def exit_code(self, fail_on: Severity = Severity.ERROR) -> Exit:
        """1 for a refusal, an error or (where asked) a warning; 2 where nothing at all could be decided."""
        severities = {placed.finding.severity for item in self.items for placed in item.findings}
        decided = any(item.is_decided for item in self.items)
        warned = fail_on is Severity.WARNING and Severity.WARNING in severities
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
        findings=tuple(_placed(document, finding, field_path(finding.field)) for finding in checked.findings),
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
        findings=tuple(_located(document, located) for located in judged.findings),
        judged=judged,
    )


def of_document(document: Document) -> Item:
    """Something about vLLM that no reader understands: never silence."""
    return Item(
        document=document, line=document.position.line, path="", kind=document.kind or "values", name="", namespace="",
        platform="unknown", verdict=None, findings=(_placed(document, _NOT_UNDERSTOOD, ""),),
    )  # fmt: skip


def of_broken(item: Broken) -> Placed:
    """What could not be read, in its place."""
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
    """As they stand in the files, file by file in the order of the input."""
    files = {file: index for index, file in enumerate(dict.fromkeys(item.document.file for item in items))}
    return tuple(sorted(items, key=lambda item: (files[item.document.file], item.line)))
