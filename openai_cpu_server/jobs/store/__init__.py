"""Files and batches in a database. Synchronous; One thread makes all calls that write."""
