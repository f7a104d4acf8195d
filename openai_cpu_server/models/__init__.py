"""The models that the server serves: what belongs to each, and which one a request means."""
