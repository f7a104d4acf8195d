"""`GET /v1/events`: live view of the scheduler. One broadcaster watches the engines while a client listens.
Requests of others are shown only as counts. A slow listener loses steps and delays no other. Keys are checked
again every second."""
