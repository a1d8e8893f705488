"""`kvgate why`: say why an engine does not start, and what would change that."""
