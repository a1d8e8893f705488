"""Colours, thresholds, axes and units of the dashboards. The limits are those at which the alerts begin."""

from msgspec import Struct

from mixin.alerts_engines import ENGINE_FULL, TIME_TO_FIRST_TOKEN
from mixin.alerts_processes import WEBHOOK_SLOW
from mixin.queries import CERTIFICATE_MIN_DAYS, HEADROOM_LOW, PREDICTION_ERROR_MAX

GREEN, ORANGE, RED, BLUE, GREY, PURPLE, YELLOW, TEAL, BROWN, PINK = (
    "#2f9e44", "#e8890c", "#d6336c", "#4269d0", "#8c959f", "#9467bd", "#d9b310", "#0c8599", "#7f4f24", "#f783ac",
)  # fmt: skip
A_MINUTE, DAYS, SINCE, PERCENT = "suffix:/ min", "suffix:days", "dateTimeAsIsoNoDateIfToday", "percentunit"
"""Units. Two are our own, because Grafana's would turn a hundred of them into hours or weeks."""

Thresholds = tuple[tuple[float | None, str], ...]
"""(lower bound, colour) of each step; the lowest bound is None."""

PLAIN: Thresholds = ((None, BLUE),)
BAD_ABOVE_ZERO: Thresholds = ((None, GREEN), (1, RED))
ODD_ABOVE_ZERO: Thresholds = ((None, GREEN), (1, ORANGE))
EXACTLY_ONE: Thresholds = ((None, RED), (1, GREEN), (2, RED))
TIGHT: Thresholds = ((None, RED), (0, ORANGE), (HEADROOM_LOW, GREEN))
"""Headroom: predicted below 0, the guarantee does not fit."""
LEFT: Thresholds = ((None, RED), (0.05, ORANGE), (0.2, GREEN))
"""Observed headroom, which running requests use up."""
WRONG: Thresholds = ((None, ORANGE), (-PREDICTION_ERROR_MAX, GREEN), (PREDICTION_ERROR_MAX, ORANGE))
"""Error of the prediction."""
FULL: Thresholds = ((None, GREEN), (0.8, ORANGE), (ENGINE_FULL.threshold, RED))
"""Share of the KV cache in use; vLLM preempts requests at 1."""
PREEMPTING: Thresholds = ((None, GREEN), (1, ORANGE), (10, RED))
"""Preemptions per minute."""
FIRST_TOKEN: Thresholds = ((None, GREEN), (5, ORANGE), (TIME_TO_FIRST_TOKEN.threshold, RED))
"""Seconds until the first token."""
REVIEW: Thresholds = ((None, BLUE), (WEBHOOK_SLOW.threshold, RED))
"""Seconds until the answer to an admission review."""
BETWEEN_TOKENS: Thresholds = ((None, GREEN), (0.2, ORANGE), (0.5, RED))
"""Seconds between two tokens; people read about ten words in two seconds."""
EXPIRING: Thresholds = ((None, RED), (CERTIFICATE_MIN_DAYS, GREEN))
"""Days."""
SEVERITIES = (("critical", RED), ("warning", ORANGE), ("info", BLUE))


class Axis(Struct, frozen=True):
    """Values that an axis shows at least; it grows where the data goes beyond. A small change never fills a whole panel."""

    low: float | None = 0
    high: float | None = None


FROM_ZERO = Axis()
SHARE = Axis(0, 1)
FEW = Axis(0, 5)
SECOND = Axis(0, 1)
AROUND_ALL = Axis(0.8, 1.2)
"""Around 100 % of a prediction: a percent looks like a percent."""
AROUND_NOTHING = Axis(-0.2, 0.2)
"""Around no error at all."""
