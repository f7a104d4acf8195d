"""GGUF files with random weights, the exact shape of a real model and a tokenizer that works."""
