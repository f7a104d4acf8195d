"""`/generate` and its kin: an older server's names for one prompt, or many in one body.

The routes in `asking/` call it for one prompt. A batch goes the same way, prompt by prompt: each has limits,
a log line and an end of its own, and one that fails takes no other with it.
"""
