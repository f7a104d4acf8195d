"""Construction of grammars, and JSON as text: strings with escapes, punctuation, rules shared, pruned and
merged. Used by `values` and `compiler`. Equal rules are one rule, each lexeme can be read greedily, and
rules beyond the limits are rejected."""
