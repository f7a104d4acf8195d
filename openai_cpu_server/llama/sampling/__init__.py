"""Turns logits into a token.

`llama.slots` creates a `Sampler` for each open slot and calls it for each row of logits. A draw depends only
on (seed, output position), so that an output is the same whatever else is computed, interrupted or replayed.
Log-probabilities are the model's own, before adjustments.
"""
