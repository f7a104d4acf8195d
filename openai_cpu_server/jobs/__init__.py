"""Files and batches that survive: stored in a database, run row by row through one injected callable."""
