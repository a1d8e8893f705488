"""The share of small changes of the budget that the tests notice: `make mutants`."""
