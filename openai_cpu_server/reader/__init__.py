"""Processes that parse clients' input and model files with native code, and may crash.

The API calls a `ReaderPool` from worker threads, never from its event loop. A process handles one piece of
work at a time, so the work that kills it is known: it is retried once, then rejected.

`messages` is shared, `process` is the child, `pool` and `model` the client.
"""
