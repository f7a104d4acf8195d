"""Only place that imports llama.cpp. The API process imports only `gguf`, `host` and `model.kv_size`, which
load no native code.

Each native object has one owner that frees it, and an error of one request fails only that request. Files,
options and memory that do not allow a load raise `StartupError` with one line for the terminal, also where
llama.cpp would end the process; then nothing stays loaded.
"""
