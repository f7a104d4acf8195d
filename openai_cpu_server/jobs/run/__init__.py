"""Runs batches: from the lines of their input files to committed results."""
