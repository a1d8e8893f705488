"""The observed starts of a mounted file, read again when it changes; what cannot be read is logged once and costs nothing else."""

import logging
from pathlib import Path

from kvgate.budget.calibration import Calibration
from kvgate.calibration.records import Trust, read_records
from kvgate.rendering.pod import VLLM_ALONE

_log = logging.getLogger(__name__)


class StartsFile:
    """The file may come and go: without it nothing was observed."""

    def __init__(self, path: Path | None, trust: Trust = VLLM_ALONE) -> None:
        self._path = path
        self._trust = trust
        self._text = ""
        self.calibration: Calibration = trust.calibration(())
        self.reload()

    def reload(self) -> None:
        """Read the file again."""
        text = self._read()
        if text == self._text:
            return
        self._text, records = text, read_records(text)
        for problem in records.problems:
            _log.warning("calibration: %s: %s", self._path, problem)
        self.calibration = self._trust.calibration(records.starts)
        _log.info("calibration read", extra={"fields": {"starts": len(records.starts)}})

    def _read(self) -> str:
        try:
            return self._path.read_text(encoding="utf-8", errors="replace") if self._path else ""
        except OSError:
            return ""
