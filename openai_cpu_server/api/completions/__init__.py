"""`/v1/completions`: texts or token ids to go on with, and answers in the older shape.

The routes in `asking/` call it, once for each body, and once for each answer; it knows no engine and no HTTP.
An echoed prompt comes with its own log-probabilities, and `best_of` is ranked when all have ended.
"""
