"""The process of an engine: its start, its channel, its hangs and its death, and the one that replaces it."""
