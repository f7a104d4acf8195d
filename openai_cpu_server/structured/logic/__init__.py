"""Combines nodes: which values satisfy several at once and fail others."""
