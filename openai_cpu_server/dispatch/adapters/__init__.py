"""The adapters of an engine: which it is to have, how each stands, and who waits for one."""
