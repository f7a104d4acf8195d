"""API process's side: an `Engine` over replicas elsewhere.

Requests are assigned (`assignment`), sent (`proxy`, `session`), and moved when their replica is lost or
another is much sooner. An answer continues where it stopped; requests suspected of killing replicas are tried
apart, so innocent ones do not fail; all replicas have the same adapters.
"""
