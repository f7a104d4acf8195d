"""Running of batches. `Jobs` starts one `BatchRunner`, which takes free leases and makes a `BatchRun` of
each. Rows run in the order of the input as far as slots allow, and each ends in one of two files. Another
server continues the batch of a dead one from its committed rows."""
