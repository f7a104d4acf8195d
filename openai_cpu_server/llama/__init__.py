"""The only place that imports llama.cpp: steps of a scheduler become batches, logits and tokens.

The engine's process makes a `LlamaBackend` or a `LlamaEmbedder` and calls it step by step; the reader's
opens a `Vocabulary`; the commands measure and quantise. The API process imports `gguf`, `host` and
`model.kv_size` only, which load no native code.
Promises: native objects have one owner that frees them; return codes are read once; what goes wrong for
one request fails that request alone.
"""
