"""Reads and checks GBNF, llama.cpp's grammar language: what users write. Pure."""
