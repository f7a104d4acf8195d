"""Resolution of `--model` to a local GGUF file.

Functions raise StartupError: one line that advises. No code of packages is imported, and the hub's library
and numpy only where needed. `AdapterFiles` works while the server runs.
"""
