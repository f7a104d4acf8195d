"""A loaded model: its weights, its vocabulary, and the memory that it takes.

`llama.loading` opens a `Model` and asks `kv_size` for room; a reader's process opens a `Vocabulary`
alone, without weights.
Promises: a file that llama.cpp would die of is refused first; a vocabulary may be read by any thread.
"""
