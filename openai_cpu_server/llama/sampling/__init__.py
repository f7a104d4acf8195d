"""Turns logits into a token.

`llama.slots` makes a `Sampler` for each open slot and asks it once for each row of logits.
Promises: a draw depends on (seed, output position) alone, so that an output is the same whatever else is
computed, interrupted or replayed; log-probabilities are the model's own, before adjustments.
"""
