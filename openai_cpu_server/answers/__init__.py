"""Caches of answers: what has been answered once is told again, to the same question or to one like it.

The API asks `AnswerCache` before it submits a call, and hands it the events when a call has ended well.
Promises: nothing is shared between keys, models, adapters or versions of the server; a cache that fails
or is slow is a miss, never an error, but for somebody who asks to empty it; memory and disk stay within
their bounds, what was told longest ago goes first. It knows no HTTP, no model and no engine.
"""
