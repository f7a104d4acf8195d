"""Ollama's API, with answers as lines of JSON. `/api/embed` is in `api/pooling`."""
