"""`kvgate explain`: show the memory ledger of one GPU."""
