"""`kvgate sweep`: draw the out-of-memory boundary over two settings."""
