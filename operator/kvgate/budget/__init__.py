"""The pure core: bytes of a GPU in, a verdict out. Standard library only; no I/O, no clock, no logging."""
