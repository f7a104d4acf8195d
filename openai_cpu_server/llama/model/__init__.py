"""Loaded model: its weights, its vocabulary, and its memory needs. A file that would crash llama.cpp is
rejected first. Any thread may read a vocabulary."""
