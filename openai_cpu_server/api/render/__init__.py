"""From the engine's events to OpenAI's JSON. Pure; made to be cheap for every token of every stream."""
