"""Judgement of an engine that a reader found."""
