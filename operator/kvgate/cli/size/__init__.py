"""`kvgate size`: find the GPUs for a model and its workload."""
