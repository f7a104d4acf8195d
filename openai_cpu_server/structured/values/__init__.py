"""Rules for the values of a branch. Properties stand in the order of the options, and no value is there
twice.

A value that cannot be written raises, and the compiler names its place.
"""
