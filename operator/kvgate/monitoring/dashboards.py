"""The three Grafana dashboards, made of their panels; `make generate` writes them into the chart."""

from collections.abc import Iterable, Mapping

from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from kvgate.monitoring import DEPLOYMENT, FLEET, PROCESSES, board_deployment, board_fleet, board_processes
from kvgate.monitoring.panels import TITLES, datasource, links, owner_variables

Rows = Mapping[str, Iterable[Builder[models.Panel]]]
"""Title of a row and its panels; without a title the row has no heading."""


def dashboard_json(uid: str) -> str:
    """Return the JSON that Grafana imports; the same source gives the same bytes."""
    return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(_BOARDS[uid]().build()) + "\n"


def fleet() -> Dashboard:
    """Return the dashboard of all deployments."""
    board = _board(
        FLEET,
        "All InferenceDeployments: which have little KV cache left, a wrong prediction, a refused spec or unused GPUs; and vLLM pods "
        "without one.",
    )
    return _filled(
        _with_variables(board, many=True),
        {
            "": board_fleet.overview(),
            "Deployments": [board_fleet.every_deployment()],
            "Predictions": board_fleet.predictions(),
            "Under load": board_fleet.pressure(),
            "vLLM without an InferenceDeployment": board_fleet.without_owner(),
        },
    )


def deployment() -> Dashboard:
    """Return the dashboard of one deployment."""
    board = _board(DEPLOYMENT, "One InferenceDeployment: its predicted and observed KV cache, and its load.")
    return _filled(
        _with_variables(board, many=False),
        {
            "": [board_deployment.header(), *board_deployment.numbers()],
            "Predicted against observed": [
                board_deployment.ledger(),
                board_deployment.capacity(),
                board_deployment.usage(),
                board_deployment.headroom(),
            ],
            "Under load": board_deployment.load(),
            "What users feel, and what the status says": [*board_deployment.users(), board_deployment.conditions()],
        },
    )


def processes() -> Dashboard:
    """Return the dashboard of kvgate itself."""
    board = _board(PROCESSES, "kvgate's own processes: admission, reconciling, observing, and their resources.")
    return _filled(
        board.with_variable(datasource()),
        {
            "": board_processes.numbers(),
            "Admission": board_processes.admission(),
            "Reconciling": board_processes.reconciling(),
            "Observing": board_processes.observing(),
            "Processes": board_processes.processes(),
        },
    )


def _board(uid: str, description: str) -> Dashboard:
    board = Dashboard(TITLES[uid]).uid(uid).description(description).tags(["kvgate"]).timezone("browser")
    return board.refresh("30s").time("now-3h", "now").tooltip(models.DashboardCursorSync.CROSSHAIR).links(links(uid))


def _with_variables(board: Dashboard, *, many: bool) -> Dashboard:
    board.with_variable(datasource())
    for variable in owner_variables(many=many):
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
