"""Knowledge of vLLM: its options by release, its command line, its values and the names of its metrics."""
