"""KV cells: computing, storing, copying and saving them.

`llama.steps` fills a `TokenBatch` and decodes it in a `Context`; `llama.slots` shares, saves and restores
cells as the scheduler's verbs demand. The scheduler keeps the ledger of cells, llama.cpp places them. An
interrupted decode can be trimmed, and a restored block yields the logits that it yielded before.
"""
