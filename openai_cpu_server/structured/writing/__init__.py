"""Construction of grammars, and values as text. Equal rules are one rule, each lexeme can be read greedily,
and rules beyond the limits are rejected.
"""
