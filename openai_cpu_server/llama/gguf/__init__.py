"""GGUF files: what is in them, and how they are quantised.

Models are looked at here before they are loaded: by `server`, which plans memory with it, by the engine,
and by commands. Adapters are checked, because llama.cpp ends the process for some files that it should
refuse.
Promises: a damaged file is one line of an error; headers are read in milliseconds and without native
code, which only `quantize` loads.
"""
