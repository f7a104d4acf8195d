"""Branches that `allOf`, `anyOf`, `oneOf`, `not` and `if` leave for a value of one type; together exactly the
schema.

Plain truths are found first, so that alternatives are not multiplied. Merging is counted and ends with
SchemaTooLarge.
"""
