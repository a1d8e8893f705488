"""The KV cache: specs of layers, groups, blocks, and how many requests they hold.

Others use `capacity`, `spec`, `dtype` and `hybrid_manager`.
"""
