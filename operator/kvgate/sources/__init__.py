"""What running engines say about themselves: readers of vLLM's logs; text in, facts out, no network."""
