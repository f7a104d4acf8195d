"""`/v1/messages`, Anthropic's API: its conversations become the same `Ask` as chat's, its answers blocks.

`api/application.py` names its routes, and requests reach them behind the gate; `api/asking` calls `as_ask`
once for each body, and the renderer once for each answer. Promises: fields of services that there are not
here are ignored, and a header names them; `max_tokens` is the most that there may be, and needs no room.
"""
