"""Ollama's API (`/api/chat`, `/api/generate` and the others), with answers as lines of JSON. Callers:
`api/application.py` lists its routes, and `api/generation` calls the renderers. Promises: an answer streams
unless `stream` is false; fields for Ollama's own runner are ignored and named in a header; unsupported
fields that would change the answer are rejected. `/api/embed` is in `api/pooling`."""
