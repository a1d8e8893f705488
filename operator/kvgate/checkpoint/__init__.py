"""The files of a published checkpoint → facts: exact weights, formats, configs. Readers of bytes and mappings, without input or output."""
