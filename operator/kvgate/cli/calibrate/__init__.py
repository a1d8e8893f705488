"""`kvgate calibrate`: remember what starts really left for the KV cache."""
