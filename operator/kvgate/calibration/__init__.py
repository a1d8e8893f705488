"""Starts of vLLM that were observed, as text that is kept and committed."""
