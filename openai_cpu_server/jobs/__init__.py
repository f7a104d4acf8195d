"""Files and batches that survive a restart: in a database, run row by row through one injected callable."""
