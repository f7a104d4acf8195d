"""GGUF files: parsing their headers, and quantizing them. Only `quantize` loads native code."""
