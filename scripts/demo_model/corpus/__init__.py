"""The corpus generator: deterministic, no downloads, no text of other people's."""
