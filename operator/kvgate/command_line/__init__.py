"""The command line of `vllm serve` by release: every option, the words as vLLM's parser reads them, what is wrong with them."""
