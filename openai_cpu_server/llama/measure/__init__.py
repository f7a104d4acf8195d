"""Measures the cost of steps on this machine. A result of other hardware, another model or another build is
never used."""
