"""Exceptions for what the engine cannot do; a user's mistake is a finding, never one of these.

BudgetError
├── UnknownVersion        the accounting of this vLLM release is not known
└── UnmodelledKind        the arithmetic of this kind of layer, cache or weight is not known
"""


class BudgetError(Exception):
    """Base of every exception that the engine raises."""


class UnknownVersion(BudgetError):
    """The text is no vLLM version, or the release is older than the oldest one that is known."""


class UnmodelledKind(BudgetError):
    """`kind` has no formula here: the answer is Unknown and never a guess."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class UnmodelledValue(UnmodelledKind):
    """The value of a setting has no formula here."""

    def __init__(self, setting: str, value: object) -> None:
        super().__init__(f"{setting} {value}")
        self.setting = setting
        self.value = str(value)
