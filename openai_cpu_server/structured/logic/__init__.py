"""Branches that `allOf`, `anyOf`, `oneOf`, `not` and `if` leave for a value of one type, which together
allow exactly what the schema allows. Called by `compiler` and `values` for each value. Plain truths are
found first, so that alternatives are not multiplied. Merging is counted and ends with SchemaTooLarge."""
