"""The GPUs of the cluster, read from nodes and slices of devices: their memory, and which of them a pod can get. Pure."""
