"""KV cells. The scheduler keeps their ledger, llama.cpp places them."""
