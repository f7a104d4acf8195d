"""Languages as values: sets of characters, interned expressions, automata, lengths; and rules, which are
expressions by name. All other rooms of `structured` build on them; they build on none. Promises: equal
expressions are one object, so comparing and remembering them costs nothing; what is done with an automaton
is charged to a budget and ends with SchemaTooLarge, never with the stack or the memory.
"""
