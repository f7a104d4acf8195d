"""`openai-cpu-server inspect MODEL`: reports a model file's content and how it would run here."""
