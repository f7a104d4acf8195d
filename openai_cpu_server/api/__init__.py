"""The API: one folder per family, and the parts that families share.

`application` lists families and administration, and builds one ASGI application from a server's `state`.
`server/` and each API replica call it. A family has its bodies in `schema`, their conversion in `to_params`,
and its answers in `render`; `generation/` handles models and `http/` clients. Promises: a route costs one
file, and a family costs one folder and one line of `application`. Streams are server-sent events; `ollama`
has a route of its own for lines of JSON.
"""
