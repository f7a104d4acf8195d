"""Anthropic's Messages API (`/v1/messages`): conversations become the same `GenerationParams` as chat's, and
answers become blocks. Fields of absent services are ignored and named in a header, and `max_tokens` is a
ceiling that needs no room in the context."""
