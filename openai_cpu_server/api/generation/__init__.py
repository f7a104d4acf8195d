"""Generation service of all families: routes, both WebSockets and rows of batches call it with a body's
`GenerationParams` and the request's context.

`generation` chooses the model, `resolve` makes a `ResolvedRequest`, `answer_lookup` may know the answer,
`running` is the live call, `route` its HTTP side; a family's `render` implements `renderer`. Promises: errors
name fields by the client's path; nothing behind `route` reads bytes; each submitted call ends once and is
counted there. The package knows no family.
"""
