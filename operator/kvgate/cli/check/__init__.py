"""`kvgate check`: judge vLLM engines in manifests and Helm values."""
