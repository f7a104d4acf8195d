"""`/v1/chat/completions`: a body becomes an `Ask`, and the engine's events become chunks or one answer.

The routes in `asking/` call it, once for each body, and once for each answer; it knows no engine and no HTTP.
Error objects name fields as the client has written them.
"""
