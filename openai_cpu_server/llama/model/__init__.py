"""A loaded model: its weights, its vocabulary, the memory that it takes."""
