"""GBNF, llama.cpp's grammar language. An error has its line and column, nothing recurses over the text, and
its size is limited."""
