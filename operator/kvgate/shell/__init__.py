"""Shell scripts in manifests: enough of a shell to find the command that starts vLLM."""
