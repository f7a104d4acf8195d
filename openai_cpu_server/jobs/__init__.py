"""Files, batches, stored responses and what keys use: all that survives a restart, in one database.

The API calls `Jobs` for files and batches, `KeptResponses` and `UsageBook`; `server` opens the database
and runs `Jobs` beside the server; the `batch` command does so without one. Rows of batches are run
through one callable that is handed in: this room knows no HTTP and no engine.
Promises: who is told of an object finds it again after kill -9 and power loss; a row's result is
committed once, whichever server runs it; an owner sees only its own objects.
"""
