"""Every generated file and the function that writes it from its one source; `make verify` fails where a committed one differs."""

import sys
from collections.abc import Callable
from functools import partial

from generate import (
    condition_page,
    deployment_files,
    failure_page,
    incident_page,
    node_page,
    pages,
    python_options,
    reference,
    runbooks,
    schemas,
)
from kvgate.api import GROUP, PLURAL
from kvgate.api.crd import custom_resource_definition, record_definition
from kvgate.api.status import RECORD_PLURAL
from kvgate.catalogue.boards import accelerators_json
from kvgate.catalogue.models import entries_jsonl
from kvgate.cluster.permissions import (
    CERTIFICATE_RULES,
    LEASE_RULES,
    MODEL_RULES,
    NODE_RULES,
    NODE_WATCH_RULES,
    OWN_NAMESPACE_RULES,
    RULES,
    WEBHOOK_RULES,
)
from kvgate.manifests.platforms.readers import resources_in_cluster
from mixin import DASHBOARDS
from mixin.openshift import console_json
from release import publishing

Generated = tuple[str, Callable[[], str]]
"""A path below the root, and the function that returns the text of the file."""


def kubectl_resources() -> str:
    """One resource per line. The plugin reads this file, because importing the readers would take longer than the rest of its start."""
    return "".join(f"{resource}\n" for resource in (f"{PLURAL}.{GROUP}", *resources_in_cluster()))


def dashboard(uid: str) -> str:
    """Return a Grafana dashboard as JSON; this needs a package that only the development environment has."""
    try:
        from mixin.dashboards import dashboard_json
    except ModuleNotFoundError as error:
        sys.exit(f"no module {error.name}: dashboards need it; `make init` installs it")
    return dashboard_json(uid)


def console_dashboard(uid: str) -> str:
    """Return the same dashboard for OpenShift's console."""
    return console_json(dashboard(uid))


CRDS = {PLURAL: custom_resource_definition(), RECORD_PLURAL: record_definition()}
"""CustomResourceDefinitions by their plural."""
GENERATED: tuple[Generated, ...] = (
    ("operator/kvgate/catalogue/data/accelerators.json", accelerators_json),
    ("operator/kvgate/catalogue/data/models.jsonl", partial(entries_jsonl, "models")),
    ("operator/kvgate/catalogue/data/drafts.jsonl", partial(entries_jsonl, "drafts")),
    ("operator/kvgate/cli/data/kubectl_resources.txt", kubectl_resources),
    *((f"crds/{GROUP}_{plural}.yaml", partial(deployment_files.crd_yaml, crd)) for plural, crd in CRDS.items()),
    *(
        (f"{deployment_files.CRD_TEMPLATES}/{plural}.yaml", partial(deployment_files.crd_template, crd))
        for plural, crd in CRDS.items()
    ),
    (
        deployment_files.RULES_TEMPLATE,
        lambda: deployment_files.rules_template(
            controllerRules=RULES,
            ownNamespaceRules=OWN_NAMESPACE_RULES,
            modelRules=MODEL_RULES,
            nodeRules=NODE_RULES,
            nodeWatchRules=NODE_WATCH_RULES,
            certificateRules=CERTIFICATE_RULES,
            webhookRules=WEBHOOK_RULES,
            leaseRules=LEASE_RULES,
        ),
    ),
    (deployment_files.RULE_FILE, deployment_files.rules_yaml),
    (deployment_files.SCRAPE_FILE, deployment_files.scrape_yaml),
    (deployment_files.COLLECTOR_FILE, deployment_files.collector_yaml),
    (deployment_files.SCRAPE_USED_FILE, partial(deployment_files.scrape_yaml, keeps_used=True)),
    (deployment_files.RULE_TEMPLATE, deployment_files.prometheus_rule_template),
    (deployment_files.VALUES_FILE, deployment_files.chart_values),
    (deployment_files.SCHEMA_FILE, deployment_files.chart_schema),
    (deployment_files.RELABELING_TEMPLATE, deployment_files.relabeling_template),
    ("docs/incidents.md", incident_page.incident_page),
    ("docs/reference/advisories.md", pages.advisories_reference),
    ("docs/reference/nodes.md", node_page.nodes_reference),
    ("docs/reference/alerts.md", reference.alerts_reference),
    ("docs/reference/api.md", reference.api_reference),
    ("docs/reference/conditions.md", condition_page.conditions_reference),
    ("docs/reference/check.schema.json", schemas.check_schema),
    ("docs/reference/reports.schema.json", schemas.reports_schema),
    ("docs/reference/failures.md", failure_page.failures_reference),
    ("docs/reference/figures.md", reference.figures_reference),
    ("docs/reference/cli.md", reference.cli_reference),
    ("docs/reference/exits.md", reference.exits_reference),
    (python_options.FILE, python_options.python_options),
    ("docs/reference/python.md", reference.python_reference),
    ("docs/reference/diff.schema.json", schemas.diff_schema),
    ("docs/reference/manifests.md", pages.manifests_reference),
    ("docs/reference/config.md", pages.config_reference),
    ("docs/reference/config.schema.json", schemas.config_schema),
    ("docs/reference/metrics.md", reference.metrics_reference),
    ("docs/reference/pods.md", pages.pods_reference),
    ("docs/reference/changes.md", pages.changes_reference),
    ("docs/reference/unknown.md", pages.unknown_reference),
    ("docs/reference/rules.md", reference.rules_reference),
    *((f"{runbooks.FOLDER}/{alert.name}.md", partial(runbooks.page, alert)) for alert in runbooks.WRITTEN),
    *((f"charts/kvgate/dashboards/{uid}.json", partial(dashboard, uid)) for uid in DASHBOARDS),
    *((f"charts/kvgate/openshift/{uid}.json", partial(console_dashboard, uid)) for uid in DASHBOARDS),
    *((path, partial(publishing.written, path)) for path in publishing.FILES),
)
"""Every generated file, but for those that programs in tools/ and tests/ write (see the target `generate` of the Makefile)."""
