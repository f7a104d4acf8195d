"""Construction of grammars, and values as text. Equal rules are one rule, and each lexeme can be read
greedily."""
