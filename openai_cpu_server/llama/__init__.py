"""Only place that imports llama.cpp; the API process imports only `gguf`, `host` and `model.kv_size`, which
do not.

Each native object has one owner that frees it. An error of one request fails only that request. A load that
files, options or memory rule out raises `StartupError` and leaves nothing loaded, even where llama.cpp would
end the process.
"""
