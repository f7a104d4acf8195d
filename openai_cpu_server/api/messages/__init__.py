"""Anthropic's Messages API (`/v1/messages`): conversations become the same `GenerationParams` as chat's,
and answers become blocks. Callers: `api/application.py` lists its routes; `api/generation` calls the
conversion once per body and the renderer once per answer. Promises: fields of absent services are ignored
and named in a header, and `max_tokens` is a ceiling that needs no room in the context."""
