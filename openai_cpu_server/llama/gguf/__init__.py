"""GGUF files: parsing their headers, and quantizing them.

Models are inspected here before they are loaded: by `server` to plan memory, by the engine, and by commands.
Adapters are checked, because llama.cpp ends the process for some files that it should reject. A damaged file
raises a one-line error. Headers are read in milliseconds without native code, which only `quantize` loads.
"""
