"""API process's side: an `Engine` over replicas elsewhere. Requests are assigned (`assignment`), sent
(`proxy`, `session`), and moved when their replica is lost or another is much sooner. Suspects of killing
replicas are tried apart, so innocent requests do not fail; all replicas have the same adapters."""
