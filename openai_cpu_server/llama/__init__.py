"""Native code. The API process imports only `gguf`, `host` and `model.kv_size`, which do not load llama.cpp.

Each native object has one owner, and an error of one request fails only that request. A failed load raises
`StartupError` and leaves nothing loaded, even where llama.cpp would end the process.
"""
