"""llama-server's own API: `/completion`, `/infill`, `/props`, `/slots`."""
