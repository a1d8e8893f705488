"""Fetches what publishers published from a hub, a folder or a mirror; only where somebody asked for it, never on the admission path."""
