"""docs/runbooks of alerts whose row says all: what fires it, the command that shows the cause, and the one that ends it."""

from textwrap import fill

from generate.reference import HEAD
from mixin.alert import OWNER, SERVER, SEVERITIES, Alert
from mixin.alerts import ALERTS

FOLDER = "docs/runbooks"
WRITTEN = tuple(alert for alert in ALERTS if alert.cause)
_ALL = "[Its query, and all alerts](../reference/alerts.md)."
_PAGE = """\
{head}
# {name}

{summary}.

## What it means

{means}

## What to look at

First:

```{language}
{cause}
```

## What to do

```sh
{remedy}
```
"""


def page(alert: Alert) -> str:
    """Write the runbook; NAME, NAMESPACE and POD are the labels of the alert, N is the reader's number."""
    summary = alert.summary.replace(OWNER, "a deployment").replace(SERVER, "a deployment")
    threshold = f" (threshold: {alert.threshold:g} {alert.unit})" if alert.unit else ""
    severity = SEVERITIES[alert.severity]
    return _PAGE.format(
        head=HEAD,
        name=alert.name,
        summary=summary[0].upper() + summary[1:],
        means=fill(f"It fires after {alert.holds_for} when {alert.when}{threshold}. It {severity}. {_ALL}", 140),
        language="sh" if alert.cause.startswith("kubectl ") else "",
        cause=alert.cause,
        remedy=alert.remedy,
    )
