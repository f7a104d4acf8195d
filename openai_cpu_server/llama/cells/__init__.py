"""KV cells: where they are computed, stored, copied and saved.

`llama.steps` lays out a `TokenBatch` and decodes it in a `Context`; `llama.slots` shares, saves and
restores cells as the scheduler's verbs say. Which cells belong to whom the scheduler knows; llama.cpp
places them.
Promises: an interrupted decode can be trimmed; a block that is restored gives the logits that it gave.
"""
