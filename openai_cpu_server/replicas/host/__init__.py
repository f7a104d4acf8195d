"""Replica's side: one engine process, and the API processes that send it requests.

`ray/engine_replica` creates a `ReplicaHost` and a `ReplicaDoor`. An API process connects to the door and has
a session; its requests end with the session, or when it is silent for the time of a lease. Promise: a
session's news arrives in order, and each CPU millisecond of a client is reported exactly once.
"""
