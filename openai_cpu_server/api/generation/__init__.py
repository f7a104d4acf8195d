"""Generation service of all families: `generation` chooses the model, `resolve` makes a `ResolvedRequest`,
`answer_lookup` may know the answer, `running` is the live call, `route` its HTTP side. Promises: errors name
fields by the client's path; nothing behind `route` reads bytes; each submitted call ends once and is counted
there."""
