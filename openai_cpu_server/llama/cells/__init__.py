"""KV cells: where they are computed, kept, copied and saved."""
