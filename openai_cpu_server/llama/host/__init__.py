"""The machine: its memory, its cores, and who else computes on it."""
