"""GGUF files: what is in them, and how they are quantised."""
