"""What `kvgate check` and `kvgate diff` found, as records, and one writer for each output format."""
