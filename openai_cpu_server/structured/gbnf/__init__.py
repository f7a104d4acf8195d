"""GBNF, llama.cpp's grammar language. `parser` reads what users write, in the reader process; `printer`
prints what a schema becomes, for the command `grammar`. Printed text is read back as what runs. An error
has its line and column, nothing recurses over the text, and its size is limited."""
