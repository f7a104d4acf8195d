"""GGUF files. Only `quantize` loads native code."""
