"""From a checked body to what the engine understands. Pure functions; all refusals are InvalidRequest."""
