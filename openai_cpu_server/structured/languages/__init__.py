"""Languages as values: character sets, interned expressions, automata, lengths; and rules, which are named
expressions.

Automata are charged to a budget and end with SchemaTooLarge, never with the stack.
"""
