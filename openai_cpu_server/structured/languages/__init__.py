"""Languages as values: character sets, interned expressions, automata, lengths; and rules, which are named
expressions. Used by all other packages of `structured`; uses none of them. Automata are charged to a budget
and end with SchemaTooLarge, never with the stack."""
