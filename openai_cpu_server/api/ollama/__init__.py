"""Ollama's API (`/api/chat`, `/api/generate` and others), with answers as lines of JSON. `/api/embed` is in
`api/pooling`."""
