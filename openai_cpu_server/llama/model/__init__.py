"""Loaded model: its weights, its vocabulary, and its memory needs."""
