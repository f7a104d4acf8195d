"""Replica's side: one engine process, and the API processes that send it requests.

An API process connects to the `ReplicaDoor` and has a session; its requests end with the session, or when it
is silent for the time of a lease. A session's news arrives in order, and each CPU millisecond of a client is
reported exactly once.
"""
