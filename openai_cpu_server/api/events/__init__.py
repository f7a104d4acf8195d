"""`GET /v1/events`: live view of the scheduler. One `hub` watches the engines while a client listens; each
listener has a `view` for its key, and a `stream`. Requests of others are shown only as counts. A slow
listener loses steps and delays no other. Keys are checked again every second."""
