"""Generation under an older server's names (`/generate` and others), for one prompt or many in one body. Each
prompt of a batch has its own limits, log entry and end, and a failure affects no other prompt."""
