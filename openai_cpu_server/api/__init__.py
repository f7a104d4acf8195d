"""The API: one folder per family, and the parts that families share. `application` builds one ASGI
application from a server's `state`; `generation/` handles models and `http/` clients. Promises: a route costs
one file, and a family costs one folder and one line of `application`."""
