"""`/v1/messages`, Anthropic's API: its conversations become the same `Ask` as chat's, its answers blocks.

The routes in `asking/` call it, once for each body, and once for each answer; it knows no engine and no HTTP.
Fields of services that there are not here are ignored, and a header names them.
"""
