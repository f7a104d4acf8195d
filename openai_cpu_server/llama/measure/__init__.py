"""Costs of steps. A result of other hardware, another model or another build is never used."""
