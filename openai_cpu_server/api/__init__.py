"""The only place that knows Starlette and OpenAI's JSON."""
