"""The API: one folder per family, and the parts that families share. `application` lists families and
administration, and builds one ASGI application from a server's `state`. A family defines its bodies and
answers; `generation/` handles models and `http/` clients. Promises: a route costs one file, and a family
costs one folder and one line of `application`."""
