"""llama-server's own API: `/completion`, `/infill`, `/props`, `/slots`. `/embedding` is in `api/pooling`,
`/tokenize` and `/apply-template` are in `api/admin/tokens.py`."""
