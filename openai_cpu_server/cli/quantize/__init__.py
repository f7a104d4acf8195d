"""`openai-cpu-server quantize IN OUT`: converts the tensors of a GGUF file to smaller types, by llama.cpp.

`command` runs the work in a process of its own (`worker`), for a native call cannot be ended otherwise.
OUT is there whole or not at all, whatever happens to either process.
"""
