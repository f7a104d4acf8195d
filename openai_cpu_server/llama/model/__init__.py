"""Loaded model: its weights, its vocabulary, and its memory needs.

`llama.loading` opens a `Model` and plans memory with `kv_size`; a reader opens a `Vocabulary` without
weights. A file that would crash llama.cpp is rejected first. Any thread may read a vocabulary.
"""
