"""The memory of one rank's GPU, term by term, and their sum.

Others use `ledger`, and of single terms `lora`, `non_torch` and `offload`.
"""
