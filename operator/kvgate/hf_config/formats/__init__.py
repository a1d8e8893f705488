"""Formats of weights: which modules are quantised, and how many bytes their tensors take."""
