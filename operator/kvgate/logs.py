"""What both processes log: one JSON object per line on stderr."""

import json
import logging
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """A record's `fields` stand beside its event; kopf's records carry the object they speak of."""

    def format(self, record: logging.LogRecord) -> str:
        reference = getattr(record, "k8s_ref", None) or {}
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **{key: reference[key] for key in ("namespace", "name") if key in reference},
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_as_json() -> None:
    """From INFO on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
