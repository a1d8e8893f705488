"""Readers of the platforms that people deploy vLLM with."""
