"""Exceptions for what the engine cannot do; a user's mistake is a finding, never one of these.

BudgetError
├── UnknownVersion        no accounting is known for this vLLM release
└── UnmodelledKind        the arithmetic of this kind of layer, cache or weight is not known
"""


class BudgetError(Exception):
    """Base of everything the engine raises."""


class UnknownVersion(BudgetError):
    """The vLLM version is not a version, or older than the oldest one that is known."""


class UnmodelledKind(BudgetError):
    """`kind` names what has no formula here: the answer is Unknown, never a guess."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind
