"""The engine's events become OpenAI's JSON. Pure; cheap enough for every token of every stream."""
