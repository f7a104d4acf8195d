"""GGUF files: parsing their headers, and quantizing them.

Models are inspected here before they are loaded, by `server`, the engine and commands. A damaged file raises
a one-line error, also where llama.cpp would end the process. Headers are read in milliseconds without native
code, which only `quantize` loads.
"""
