"""Anthropic's Messages API (`/v1/messages`): conversations become the same `GenerationParams` as chat's, and
answers become blocks."""
