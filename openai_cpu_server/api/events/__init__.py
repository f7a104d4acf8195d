"""Live view of the scheduler. Requests of others are shown only as counts. A slow listener loses steps and
delays no other. Keys are checked again every second."""
