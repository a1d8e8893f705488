"""What running engines say about themselves: readers of vLLM's logs and metrics; text in, facts out, no network."""
