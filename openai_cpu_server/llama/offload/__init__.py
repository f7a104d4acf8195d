"""Devices beside the CPU, and the parts of a model that go there. A requested split that does not fit is
reported with the arithmetic."""
