"""Capacity planning: many questions to the same engine."""
