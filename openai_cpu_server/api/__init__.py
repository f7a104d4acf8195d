"""The API: a folder for each family, and what they share.

`application` lists the families and the rooms of administration, and makes of them and of a server's parts
(`parts`) one ASGI application; `server/` calls it, and each API replica. A family says what a body asks for,
and how an answer is told; all else is in `asking/` (models) and in `http/` (clients). Promises: a route costs
one file, and a family one folder and one line of `application`.
"""
