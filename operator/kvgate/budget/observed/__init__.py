"""Starts that were observed: what they correct, whom they are believed from, and when they are out of date.

Others use `Calibration` and `ObservedStart` of `kvgate.budget`.
"""
