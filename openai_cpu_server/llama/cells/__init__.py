"""KV cells: where they are computed, stored, copied and saved."""
