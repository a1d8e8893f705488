"""`kvgate generate`: every generated file from its one source; `make verify` fails where a committed one differs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import yaml

from kvgate.api import GROUP, PLURAL
from kvgate.api.crd import custom_resource_definition
from kvgate.catalogue.lookup import accelerators_json
from kvgate.cli.generate.alert_reference import alerts_reference
from kvgate.cli.generate.chart_files import CRD_TEMPLATE, RULES_TEMPLATE, crd_template, rules_template
from kvgate.cli.generate.config_reference import config_reference
from kvgate.cli.generate.manifest_reference import kubectl_resources, manifests_reference
from kvgate.cli.generate.monitoring_files import (
    RELABELING_TEMPLATE,
    RULE_FILE,
    RULE_TEMPLATE,
    SCRAPE_FILE,
    prometheus_rule_template,
    relabeling_template,
    rules_yaml,
    scrape_yaml,
)
from kvgate.cli.generate.pod_reference import pods_reference
from kvgate.cli.generate.reference import HEAD, api_reference, cli_reference, metrics_reference
from kvgate.cli.generate.rule_reference import rules_reference
from kvgate.cli.terminal import show_lines
from kvgate.cluster.permissions import LEASE_RULES, OWN_NAMESPACE_RULES, RULES
from kvgate.monitoring import DASHBOARDS

Generated = tuple[str, Callable[[], str]]
"""A path below the root, and what writes its text."""


def crd_yaml() -> str:
    """The CustomResourceDefinition, for `kubectl apply -f crds/`."""
    crd = yaml.safe_dump(custom_resource_definition(), sort_keys=False, allow_unicode=True, width=120)
    return f"# Generated from operator/kvgate/api by `make generate`.\n{crd}"


def dashboard(uid: str) -> str:
    """A Grafana dashboard, for people with the tools for development."""
    try:
        from kvgate.monitoring.dashboards import dashboard_json
    except ModuleNotFoundError as error:
        raise click.ClickException(f"no module {error.name}: dashboards need it; `make init` installs it") from None
    return dashboard_json(uid)


GENERATED: tuple[Generated, ...] = (
    ("operator/kvgate/catalogue/data/accelerators.json", accelerators_json),
    ("operator/kvgate/cli/data/kubectl_resources.txt", kubectl_resources),
    (f"crds/{GROUP}_{PLURAL}.yaml", crd_yaml),
    (CRD_TEMPLATE, lambda: crd_template(custom_resource_definition())),
    (RULES_TEMPLATE, lambda: rules_template(RULES, OWN_NAMESPACE_RULES, LEASE_RULES)),
    (RULE_FILE, rules_yaml),
    (SCRAPE_FILE, scrape_yaml),
    (RULE_TEMPLATE, prometheus_rule_template),
    (RELABELING_TEMPLATE, relabeling_template),
    ("docs/reference/alerts.md", lambda: alerts_reference(HEAD)),
    ("docs/reference/api.md", api_reference),
    ("docs/reference/cli.md", cli_reference),
    ("docs/reference/manifests.md", lambda: manifests_reference(HEAD)),
    ("docs/reference/config.md", lambda: config_reference(HEAD)),
    ("docs/reference/metrics.md", metrics_reference),
    ("docs/reference/pods.md", lambda: pods_reference(HEAD)),
    ("docs/reference/rules.md", lambda: rules_reference(HEAD)),
    *((f"charts/kvgate/dashboards/{uid}.json", partial(dashboard, uid)) for uid in DASHBOARDS),
)
"""Every file that is generated; nothing else writes one."""


@click.command(hidden=True)
@click.option("--list", "only_list", is_flag=True, help="Name the files and write none.")
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Folder to write to; default: here.",
)
def generate(root: Path, *, only_list: bool) -> None:
    """Rewrite every generated file below the root of the repository."""
    for name, text in GENERATED:
        path = root / name
        if not only_list:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text(), encoding="utf-8")
        show_lines(str(path))
