"""`openai-cpu-server quantize IN OUT`: converts the tensors of a GGUF file to smaller types with llama.cpp.

`command` runs the work in a process of its own (`worker`), because a native call cannot be stopped otherwise.
OUT is written whole or not at all, whatever happens to either process.
"""
