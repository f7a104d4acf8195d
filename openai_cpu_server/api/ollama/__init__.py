"""Ollama's API (`/api/chat`, `/api/generate` and the others), with answers as lines of JSON. An answer
streams unless `stream` is false. Fields for Ollama's own runner are ignored and named in a header;
unsupported fields that would change the answer are rejected. `/api/embed` is in `api/pooling`."""
