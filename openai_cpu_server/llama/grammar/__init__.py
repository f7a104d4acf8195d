"""Grammars, executed by llguidance. A wrong or slow one fails only its own request, with ConstraintFailed."""
