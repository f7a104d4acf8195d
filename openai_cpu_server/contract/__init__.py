"""What crosses the process boundary, and the protocols layers meet at. Imports nothing of ours but errors."""
