"""The process that reads what clients send and what is in models' files, with native code, and may die.

The API process has a `ReaderPool` and calls it from worker threads, never from its event loop: tokens of
texts and conversations, grammars, and the vocabularies of files come from there. Each process works on one
piece of work at a time, so whoever kills one is known. It dies, and another takes its place within half a
second; the piece of work is tried once more, and blamed if it kills again. All others never notice.
`messages` is what both sides know, `process` and `work` are the child, `pool` and `model` are the client.
"""
