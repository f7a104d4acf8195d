"""Resolution of `--model` to a local GGUF file. Called by `server` at the start and by commands that inspect
or change models; `AdapterFiles` also while the server runs. Functions raise StartupError: one line that says
what to do. No code of packages is imported, and the hub's library and numpy only where needed."""
