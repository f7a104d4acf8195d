"""What must hold at once: the branches that `allOf`, `anyOf`, `oneOf`, `not` and `if` leave for a value of
one type. `compiler` and `values` ask it for each value. What is plainly true or false is seen first, and
alternatives that properties tell apart are not multiplied. Promises: the branches together allow exactly
what the nodes allow; merging is counted and ends in SchemaTooLarge.
"""
