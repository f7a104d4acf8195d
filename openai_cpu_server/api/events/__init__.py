"""Live view of the scheduler, with only counts of others' requests. A slow listener loses steps and delays no
other. Keys are checked again every second."""
