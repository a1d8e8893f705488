"""Input that makes a run impossible: a broken configuration, baseline or config.json."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it is raised from what the report is made of
    from kvgate.cli.check.report import Placed


class BadInput(ValueError):
    """One sentence, or findings in their places."""

    def __init__(self, message: str = "", problems: Sequence["Placed"] = ()) -> None:
        super().__init__(message)
        self.problems = problems
