"""Turns logits into a token."""
