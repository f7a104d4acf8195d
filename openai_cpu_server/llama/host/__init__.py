"""The machine: its memory, its cores, and other processes' use of it."""
