"""A grammar under construction, and JSON as text: strings with escapes, punctuation, rules that are shared,
pruned and merged. `values` and the compiler write with it; `maker` puts parts under one root with `parts`.
Promises: equal rules are one rule; each lexeme can be read greedily; rules beyond the limits are refused.
"""
