"""Vision and audio towers: their weights, and what the largest item gives."""
