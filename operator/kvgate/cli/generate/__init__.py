"""`kvgate generate`: rewrite every generated file."""
