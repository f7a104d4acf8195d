"""Runs batches: from the lines of their input files to committed results.

`Jobs` starts one `BatchRunner`, which takes leases of batches that nobody runs and makes a `BatchRun` of
each.
Promises: rows run in the order of the input as far as slots allow; a batch ends with every row in one of
its two files; one whose server dies is gone on with elsewhere, from its committed rows.
"""
