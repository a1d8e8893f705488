"""The three Grafana dashboards, made of their panels; `make generate` writes them into the chart."""

from collections.abc import Iterable, Mapping

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from mixin import (
    DEPLOYMENT,
    FLEET,
    PROCESSES,
    board_deployment,
    board_fleet,
    board_parts,
    board_processes,
)
from mixin.expressions import CHOSEN, CLUSTER, NAMESPACE
from mixin.frames import MARKS, TITLES, links, variables
from mixin.queries import equals

Rows = Mapping[str, Iterable[Builder[models.Panel]]]
"""Title of a row and its panels; without a title the row has no heading."""


def dashboard_json(uid: str) -> str:
    """Return the JSON that Grafana imports; the same source gives the same bytes."""
    return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(_BOARDS[uid]().build()) + "\n"


def fleet() -> Dashboard:
    """Return the dashboard of all deployments."""
    about = "All InferenceDeployments in the order of a person on call: who suffers, since when, why, and the runbook that says what to do."
    return _filled(
        _board(FLEET, about, owners=True, many=True),
        {
            "": board_fleet.now(),
            "Who suffers, and what to do": [
                board_fleet.alerts(24, 9, CLUSTER, NAMESPACE),
                board_fleet.every_deployment(),
            ],
            "Since when": board_fleet.since_when(),
            "Why": board_fleet.why(),
            "GPUs that memory does not need": board_fleet.capacity(),
            "vLLM without an InferenceDeployment": board_fleet.without_owner(),
        },
    )


def deployment() -> Dashboard:
    """Return the dashboard of one deployment."""
    board = _board(
        DEPLOYMENT, "One InferenceDeployment: what its users feel, since when, why, and what to do.", owners=True
    )
    for mark in MARKS:
        board.annotation(mark)
    return _filled(
        board,
        {
            "": [board_deployment.header(), *board_deployment.now()],
            "What to do": [board_fleet.alerts(12, 8, *CHOSEN, is_fleet=False), board_deployment.conditions()],
            "What users feel, since when": board_deployment.users(),
            "Why: the KV cache (100 % is the expected capacity)": board_deployment.kv_cache(),
            "Why: the pods": board_deployment.pods(),
            "Why: prefix cache and offloading": board_parts.caches(),
            "Why: prefill and decode": board_parts.roles(),
            "Why: adapters": [board_parts.adapters()],
            "Why: the GPUs, as DCGM measures them": board_parts.measured_gpus(),
            "What fits": board_deployment.fits(),
        },
    )


def processes() -> Dashboard:
    """Return the dashboard of kvgate itself."""
    return _filled(
        _board(PROCESSES, "kvgate's own processes: do they run, answer, keep up and learn.", owners=False),
        {
            "": board_processes.numbers(),
            "Alerts": [board_fleet.alerts(24, 5, equals("inferencedeployment", ""), equals("workload", ""))],
            "Admission": board_processes.admission(),
            "Reconciling": board_processes.reconciling(),
            "Observing": board_processes.observing(),
            "Processes": board_processes.processes(),
        },
    )


def _board(uid: str, description: str, *, owners: bool, many: bool = False) -> Dashboard:
    board = Dashboard(TITLES[uid]).uid(uid).description(description).tags(["kvgate"]).timezone("browser")
    board.refresh("30s").time("now-3h", "now").tooltip(models.DashboardCursorSync.CROSSHAIR).links(links(uid))
    for variable in variables(owners=owners, many=many):
        board.with_variable(variable)
    return board


def _filled(board: Dashboard, rows: Rows) -> Dashboard:
    for title, panels in rows.items():
        if title:
            board.with_row(Row(title))
        for panel in panels:
            board.with_panel(panel)
    return board


_BOARDS = {FLEET: fleet, DEPLOYMENT: deployment, PROCESSES: processes}
