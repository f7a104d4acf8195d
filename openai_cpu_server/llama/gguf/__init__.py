"""GGUF files: parsing their headers, and quantizing them. A damaged file raises a one-line error, also where
llama.cpp would end the process. Only `quantize` loads native code."""
