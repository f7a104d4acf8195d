"""Devices beside the CPU, and their parts of a model. A requested split that does not fit is reported with
the arithmetic."""
