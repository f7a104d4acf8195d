"""This room alone knows Starlette and OpenAI's JSON."""
