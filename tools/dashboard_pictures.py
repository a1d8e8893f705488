"""Write docs/dashboards/*.png: each dashboard over the recorded run, at the speed of the recording.

.venv/bin/python tools/dashboard_pictures.py
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from controlplane.prometheus import ensure_prometheus
from fleet.monitored import NAMESPACE, monitored
from mixin import DASHBOARDS, DEPLOYMENT
from mixin.dashboards import dashboard_json
from pictures.dashboard import draw

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "dashboards"
SHOWN = {"namespace": NAMESPACE, "inferencedeployment": "llama-3-1-8b"}
"""Choice on the dashboard of one deployment."""


def main() -> None:
    """One run for all."""
    FOLDER.mkdir(exist_ok=True)
    with monitored(ensure_prometheus("3"), speed=1) as fleet:
        window = replace(fleet.window, scrape_seconds=1.25)
        for uid in DASHBOARDS:
            target = FOLDER / f"{uid}.png"
            chosen = SHOWN if uid == DEPLOYMENT else {}
            draw(json.loads(dashboard_json(uid)), fleet.prometheus, replace(window, chosen=chosen), target)
            print(target)


if __name__ == "__main__":
    main()
