"""Log lines of both processes: one JSON object per line on stderr."""

import logging
from datetime import UTC, datetime

from kvgate.text.inert import inert, inert_values, json_text


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
        line = inert_values(line)
        if record.exc_info:
            line["traceback"] = "\n".join(map(inert, self.formatException(record.exc_info).split("\n")))
        return json_text(line)


def log_as_json() -> None:
    """Log as JSON from INFO on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
