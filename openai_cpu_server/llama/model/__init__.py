"""Loaded model: weights, vocabulary, memory needs."""
