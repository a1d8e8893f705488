"""Drafts of speculative decoding: models that belong to another one."""
