"""Servers that are killed while they work, and what is seen of that: streams, batches, long mixed traffic."""
