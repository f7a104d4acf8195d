"""Branches that `allOf`, `anyOf`, `oneOf`, `not` and `if` leave for a value of one type.

Called by `compiler` and `values` for each value. Plain truths are found first, and alternatives that
properties tell apart are not multiplied. The branches together allow exactly what the nodes allow. Merging is
counted and ends with SchemaTooLarge.
"""
