"""Languages as values: character sets, interned expressions, automata, lengths, and rules, which are named
expressions.

Used by all other packages of `structured`; uses none of them. Equal expressions are one object, so comparing
and caching them is cheap. Work on automata is charged to a budget and ends with SchemaTooLarge, never with
the stack or the memory.
"""
