"""A checked body becomes what the engine understands. Pure functions; all refusals are InvalidRequest."""
