"""The memory of the host that one pod takes: processes, offloaded blocks, segments in /dev/shm.

Others use `memory`, which sums it, and `settings`.
"""
