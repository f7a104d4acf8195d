"""A loaded model: its weights, its vocabulary, and the memory that it takes."""
