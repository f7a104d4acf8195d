"""Files, batches, stored responses and usage of keys: all that survives a restart, in one database.

The API calls `Jobs`, `KeptResponses` and `UsageBook`; `server` and the `batch` command open the database and
run `Jobs`. Rows of batches run through a callable, so this package needs no HTTP and no engine. An object
that a client knows survives kill -9 and power loss. A row's result is committed once, whichever server runs
it, and an owner sees only its own objects.
"""
