"""Layers that model classes share: attention of every kind, states, feed-forward networks, and positions."""
