"""Turns logits into a token.

`llama.slots` calls a `Sampler` for each row of logits of its slot. A draw depends only on (seed, output
position), so an output is the same whatever else is computed, interrupted or replayed. Log-probabilities are
the model's own, before adjustments.
"""
