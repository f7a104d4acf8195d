"""`/v1/completions`: texts or token ids to go on with, and answers in the older shape.

`api/application.py` names its route, and requests reach it behind the gate; `api/asking` calls it once for
each body, and once for each answer. Promises: an echoed prompt comes with its own log-probabilities, and
`best_of` is ranked when all have ended.
"""
