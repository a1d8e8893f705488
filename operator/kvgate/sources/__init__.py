"""Readers of vLLM's logs and metrics: text in, facts out, no network."""
