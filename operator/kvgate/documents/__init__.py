"""YAML and JSON that other people wrote, read with limits and with the position of every value."""
