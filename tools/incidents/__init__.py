"""Incidents as scenes: a small file says what goes wrong in the world, promtool plays it, and the alerts are judged."""
