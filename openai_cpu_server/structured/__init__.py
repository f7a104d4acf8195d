"""Grammars of JSON Schema, regular expressions, lists of choices, GBNF and Lark, as Lark for llguidance.

The grammar allows exactly the values of the schema, or an error names what cannot be enforced. Modules are
imported directly, so that other processes do not load them.
"""
