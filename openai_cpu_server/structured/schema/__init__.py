"""Reads a JSON Schema into nodes, small constraints in a normal form."""
