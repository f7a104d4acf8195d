"""KV cells: computing, storing, copying and saving them. The scheduler keeps the ledger of cells, llama.cpp
places them. An interrupted decode can be trimmed, and a restored block yields the same logits as before."""
