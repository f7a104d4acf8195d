"""`/v1/chat/completions`: a body becomes an `Ask`, and the engine's events become chunks or one answer.

`api/application.py` names its routes, and requests reach them behind the gate; `api/asking` calls `as_ask`
once for each body, and the renderer once for each answer. It knows no engine and no HTTP but its rows in the
table. Promises: error objects name fields as the client has written them.
"""
