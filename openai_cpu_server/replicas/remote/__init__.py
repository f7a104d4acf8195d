"""API process's side: an `Engine` over replicas elsewhere.

`ray/api_replica` creates a `RemoteEngine` for each model and passes it the replicas. Requests are assigned
(`assignment`), sent (`proxy`, `session`), and moved when their replica is lost or another is much
sooner. Promises: an answer continues where it stopped, also at another replica; requests suspected of killing
replicas are tried apart, so innocent ones do not fail; all replicas have the same adapters.
"""
