"""What the cluster has: nodes and slices of devices → GPUs, their memory, and which of them a pod can get. Pure."""
