"""Decides what each step computes. Pure: standard library and contract only, no I/O, no clock of its own."""
