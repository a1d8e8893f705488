"""Bytes, intervals, errors, the hardware, and constants that were fitted to starts: words that every part of the budget uses."""
