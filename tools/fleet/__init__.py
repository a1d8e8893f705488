"""Whatever runs on a test control plane: fake engines, GPU nodes on paper, pods, and kvgate's own processes."""
