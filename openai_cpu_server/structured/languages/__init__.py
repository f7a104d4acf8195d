"""Languages: expressions over characters, and the automata of them."""
