"""A conversation as the text that a model reads. Text in, text out."""
