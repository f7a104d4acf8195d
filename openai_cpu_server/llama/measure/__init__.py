"""Measures what steps cost on this machine, and keeps measurements.

The engine's process calls `Calibrator` while nobody wants anything; `tune` and `inspect` use the same
probes.
Promises: what is measured leaves no trace in the pool; a result is kept under all that it depends on, and
one of other hardware, another model or another build is never used.
"""
