"""`kvgate models`: the catalogue as a list, what publishers published, and the file that keeps it."""
