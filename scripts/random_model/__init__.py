"""GGUF files with random weights, a real model's shape and a working tokenizer."""
