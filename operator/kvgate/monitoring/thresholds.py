"""Values at which alerts begin and the dashboards change colour."""

HEADROOM_LOW = 0.10
HEADROOM_AMPLE = 0.20
PREDICTION_ERROR_MAX = 0.10
ADMISSION_ERRORS_MAX = 0.01
ADMISSION_P99_MAX_SECONDS = 0.5
CERTIFICATE_MIN_DAYS = 14
"""cert-manager renews after two thirds of the time: below this a renewal is overdue."""
