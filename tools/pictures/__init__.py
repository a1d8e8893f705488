"""Pictures of the documentation: the ledger, a sweep, and dashboards that are drawn without Grafana."""
