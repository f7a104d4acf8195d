"""Generation service, and everything that the generating families share.

Routes of families, both WebSockets and rows of batches call it with a body's `Ask` and the request's context.
`generation` chooses the model, `resolve` makes a `Call`, `answer_lookup` looks for an earlier answer,
`running` is the live call, and `route` is its HTTP side. Promises: errors name fields by the client's path,
because every part of an `Ask` carries it. Nothing behind `route` reads bytes. Each submitted call ends once
and is counted there. The package knows no family.
"""
