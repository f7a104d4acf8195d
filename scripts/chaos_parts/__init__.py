"""Servers that are killed while they work, and their clients: streams, batches, long mixed traffic."""
