"""Text completions (`/v1/completions`): texts or token ids to continue, and answers in the older form.
Callers: `api/application.py` lists its route; `api/generation` calls the conversion once per body and the
renderer once per answer. Promises: an echoed prompt has its own log-probabilities, and `best_of` is ranked
when all sequences have ended."""
