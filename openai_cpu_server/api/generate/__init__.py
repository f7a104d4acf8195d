"""Generation under an older server's names (`/generate` and others), for one prompt or many in one body.
Callers: `api/application.py` lists its routes, and `api/generation` calls `generate_params` once per prompt,
also of a batch. Promises: each prompt of a batch has its own limits, log entry and end, and a failure
affects no other prompt."""
