"""Text completions: a family of the API.

`api/rooms.py` names its routes, and requests reach them behind the gate. The family says what a body asks
for, and how an answer is told; what it shares with the others is in `api/asking`.
"""
