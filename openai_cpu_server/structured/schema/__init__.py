"""A JSON Schema as nodes: read by its draft, references followed, each keyword checked once. Called by
`compiler` first, for the whole schema. A keyword that is unknown or cannot be enforced is reported with
its JSON pointer, or noted if the request is not strict."""
