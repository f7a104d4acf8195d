"""Turns logits into a token. A draw depends only on (seed, output position), so an output is the same
whatever else is computed, interrupted or replayed. Log-probabilities are the model's own, before
adjustments."""
