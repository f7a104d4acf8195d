"""Measures the cost of steps on this machine, and stores measurements. They leave no trace in the pool. A
result of other hardware, another model or another build is never used."""
