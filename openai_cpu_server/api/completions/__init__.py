"""Text completions (`/v1/completions`): texts or token ids to continue, and answers in the older form. An
echoed prompt has its own log-probabilities, and `best_of` is ranked when all sequences have ended."""
