"""`kvgate diff`: show what a change does to KV cache capacity."""
