"""llama-server's own API: `/completion`, `/infill`, `/props`, `/slots` and the others, in its forms.
Callers: `api/application.py` lists its routes, and `api/generation` calls the renderer. Promises: absent
fields have llama-server's defaults; fields that only control its memory are ignored and named in a header;
unsupported fields that would change the answer are rejected. `/embedding` is in `api/pooling`, and
`/tokenize` and `/apply-template` are in `api/admin/tokens.py`."""
