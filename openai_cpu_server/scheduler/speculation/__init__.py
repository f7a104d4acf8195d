"""Drafts: tokens of sequences that are computed before they are known to be right."""
