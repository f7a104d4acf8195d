"""Files and batches in a database. Synchronous; one thread makes all calls."""
