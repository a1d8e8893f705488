"""Pods that run vLLM: containers, their command lines, their GPUs and volumes."""
