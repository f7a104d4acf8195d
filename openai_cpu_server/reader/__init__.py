"""Processes that parse clients' input and model files with native code, and may die of it.

The API process calls a `ReaderPool` from worker threads, never from its event loop, to tokenize, render
conversations, try grammars, decode media and read vocabularies. A process handles one piece of work at a
time, so the work that kills it is known. A replacement starts within half a second, and the work is tried
once more and rejected if it kills again; other clients notice nothing.

`messages` is shared by both sides, `process` and `work` are the child, `pool` and `model` the client.
"""
