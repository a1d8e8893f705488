"""What vLLM's own classes say of a model's KV cache, release by release, on a machine without a GPU."""
