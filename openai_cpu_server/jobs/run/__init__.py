"""Running of batches. `Jobs` starts one `BatchRunner`, which takes free leases and makes a `BatchRun` of
each. Rows run in the order of the input as far as slots allow. Another server continues a dead one's batch
from its committed rows."""
