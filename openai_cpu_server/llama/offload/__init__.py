"""Devices beside the CPU, and the parts of a model that go there.

`llama.loading` asks for the split to load; `inspect` and `tune` ask what would fit. A chosen split fits with
a margin if the device reports its memory. A requested split that does not fit is reported with the
arithmetic.
"""
