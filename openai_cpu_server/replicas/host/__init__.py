"""A replica's side: one engine process, and the API processes that it computes for.

`ray/engine_replica` makes a `ReplicaHost` and a `ReplicaDoor` at its start. API processes come in by the
door; each has a session, which ends when nothing is heard of it for the time of a lease, with all that it has
ordered. Promise: what a session is told is in order, and the CPU time of a client is told exactly once.
"""
