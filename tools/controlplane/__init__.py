"""A real Kubernetes control plane and Prometheus on the loopback: how their binaries are built, started and stopped."""
