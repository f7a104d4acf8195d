"""Anthropic's Messages API. Conversations become chat's `GenerationParams`."""
