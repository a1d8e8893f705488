"""Publication: where things are published, and the steps of a release, which also run dry."""
