"""Replica's side: one engine process, and the API processes that send it requests. An API process has a
session at the `ReplicaDoor`, with which its requests end, as when it is silent for a lease. A session's news
arrives in order, and each CPU millisecond of a client is reported exactly once."""
