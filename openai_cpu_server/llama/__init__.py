"""Only place that imports llama.cpp. The engine process steps a `LlamaBackend` or a `LlamaEmbedder`, a reader
opens a `Vocabulary`, and commands measure and quantize. The API process imports only `gguf`, `host` and
`model.kv_size`, which load no native code.

Each native object has one owner that frees it, and an error of one request fails only that request.
"""
