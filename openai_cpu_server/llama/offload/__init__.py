"""Devices beside the CPU, and the parts of a model that go there. A chosen split fits with a margin if the
device reports its memory. A requested one that does not fit is reported with the arithmetic."""
