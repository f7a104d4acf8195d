"""Files and batches in a database. The stores are synchronous; one thread makes all calls that write."""
