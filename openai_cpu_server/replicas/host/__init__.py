"""A replica's side: an engine process, and the API processes that it computes for."""
