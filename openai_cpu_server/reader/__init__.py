"""Processes that parse clients' input and model files with native code, and may crash.

The API process calls a `ReaderPool` from worker threads, never from its event loop. A process handles one
piece of work at a time, so the work that kills it is known: it is tried once more and then rejected. A
replacement starts within half a second, and other clients notice nothing.

`messages` is shared by both sides, `process` is the child, `pool` and `model` the client.
"""
