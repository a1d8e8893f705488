"""The statement about one engine: everything that a door was told, in vLLM's words, before anything is looked up."""
