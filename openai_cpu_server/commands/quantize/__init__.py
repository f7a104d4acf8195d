"""`openai-cpu-server quantize`: smaller types for the tensors of a GGUF file, by llama.cpp."""
