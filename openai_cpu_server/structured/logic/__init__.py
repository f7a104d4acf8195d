"""Branches that `allOf`, `anyOf`, `oneOf`, `not` and `if` leave for a value of one type; together they allow
exactly what the schema allows.

Plain truths are found first, so that alternatives are not multiplied. Merging is counted and ends with
SchemaTooLarge.
"""
