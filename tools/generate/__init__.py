"""A tool for developers: rewrite every generated file. `make generate` runs it; the wheel does not hold it."""
