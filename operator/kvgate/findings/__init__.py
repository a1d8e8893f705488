"""Findings, their rules and severities, and the places that they are about."""
