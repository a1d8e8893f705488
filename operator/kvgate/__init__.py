"""kvgate: admits vLLM deployments to Kubernetes by their KV-cache budget."""

__version__ = "0.1.0"
