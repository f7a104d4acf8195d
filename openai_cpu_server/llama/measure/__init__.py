"""Measures the cost of steps on this machine, and stores measurements.

The engine process runs a `Calibrator` while it is idle; `tune` and `inspect` use the same probes. A
measurement leaves no trace in the pool. A result of other hardware, another model or another build is never
used.
"""
