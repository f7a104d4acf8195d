"""Files, batches, stored responses and usage of keys, in one database. The API calls `Jobs`,
`ResponseRepository` and `UsageBook`; rows run through a callable, so this package needs no HTTP and no
engine. Objects that a client knows survive kill -9 and power loss. A row's result is committed once,
whichever server runs it, and an owner sees only its own objects."""
