"""`/generate` and its kin: an older server's names for one prompt, or many in one body.

`api/application.py` names its routes, and requests reach them behind the gate; `api/asking` calls `as_ask`
for one prompt. A batch goes the same way, prompt by prompt. Promises: each prompt of a batch has limits, a
log line and an end of its own, and one that fails takes no other with it.
"""
