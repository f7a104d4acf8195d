"""`openai-cpu-server quantize`: converts the tensors of a GGUF file to smaller types, by llama.cpp."""
