"""`/v1/audio/transcriptions` and `/v1/audio/translations`: a recording is written down by a model that hears.

`api/application.py` names its routes, and requests reach it behind the gate. Promises: a recording is cut
into pieces of half a minute, where it is quiet; each is a generation of its own and all of them are one call,
with its limits, its priority and its one end; what is told of them is told in their order.
"""
