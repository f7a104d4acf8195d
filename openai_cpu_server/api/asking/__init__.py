"""What all generating families share, and THE generation service.

A family's routes, both WebSockets and the rows of batches come here with a body's `Ask` and the request's
context. `generation` chooses the model, `resolve` makes a `Call` of the ask, `answer_lookup` may know the
answer, `running` is the call while it goes on, `route` is HTTP's end of it. Promises: an error names the
field by the path that its client has used, for every part of an `Ask` carries it; nothing is read of bytes
behind `route`; every call that was submitted has one end, and is counted there. It knows no family.
"""
