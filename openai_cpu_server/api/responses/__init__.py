"""`/v1/responses`: items become a conversation, outputs become items, and both can be stored.
`api/application.py` lists its routes, which serve requests, messages of a WebSocket and rows of batches. A
response runs as every `Ask`. Beyond that it can continue a stored one (`turns`), run in the background, and
be shown, cancelled and deleted later (`stored`).

A response is stored before its client sees the end. The end of a background response is stored whoever
listens. A batch row is stored only on demand.
"""
