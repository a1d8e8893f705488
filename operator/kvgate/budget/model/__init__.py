"""What a model is made of, and the bytes of its weights on a rank.

All of it is read by whoever describes models: `shape`, `matrix`, `weights`, `draft`, `origin`.
"""
