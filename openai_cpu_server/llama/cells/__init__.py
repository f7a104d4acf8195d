"""KV cells: computing, storing, copying and saving them. The scheduler keeps the ledger of cells, llama.cpp
places them."""
