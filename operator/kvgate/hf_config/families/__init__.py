"""Families of model classes whose layers follow rules of their own."""
