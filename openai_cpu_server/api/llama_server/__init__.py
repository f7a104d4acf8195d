"""llama-server's own API: `/completion`, `/infill`, `/props`, `/slots` and the others, in its forms. Absent
fields have llama-server's defaults. Fields that only control its memory are ignored and named in a header;
unsupported fields that would change the answer are rejected. `/embedding` is in `api/pooling`, and
`/tokenize` and `/apply-template` are in `api/admin/tokens.py`."""
