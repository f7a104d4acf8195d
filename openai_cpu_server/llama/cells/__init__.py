"""KV cells: computing, storing, copying and saving them.

`llama.backend` decodes a `TokenBatch` in a `Context`; `llama.slots` shares, saves and restores cells on the
scheduler's verbs. The scheduler keeps the ledger of cells, llama.cpp places them. An interrupted decode can
be trimmed, and a restored block yields the same logits as before.
"""
