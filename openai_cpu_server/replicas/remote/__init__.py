"""The API process's side: an `Engine` over replicas elsewhere.

`ray/api_replica` makes a `RemoteEngine` for each model and tells it which replicas there are. Requests are
placed (`placement`), carried (`carrier`, `attendance`), and moved when their replica is lost or another is
much sooner. Promises: an answer goes on where it was, also at another replica; who is suspected of killing
replicas is tried apart, so nobody fails for another; all replicas have the same adapters.
"""
