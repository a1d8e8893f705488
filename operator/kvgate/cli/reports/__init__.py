"""The findings of `kvgate check` and `kvgate diff` as records, and one writer for each output format."""
