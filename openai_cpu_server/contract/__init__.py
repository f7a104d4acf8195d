"""What crosses the process boundary, and the protocols at which layers meet.
Imports nothing of ours but errors."""
