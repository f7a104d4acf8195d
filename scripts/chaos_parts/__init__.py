"""Killed servers, and their clients: streams, batches, long mixed traffic."""
