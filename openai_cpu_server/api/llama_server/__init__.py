"""`/completion`, `/infill`, `/props`, `/slots` and what else llama-server's clients ask for, in its shapes.

`api/application.py` names its routes, and requests reach them behind the gate; `api/asking` calls the
renderer. Promises: what is not sent has llama-server's defaults; fields that only steer its own memory are
ignored, and a header names them; what would change the answer and is not built is refused by its place.
`/embedding` stands in `api/pooling`, `/tokenize` and `/apply-template` in `api/admin/tokens.py`.
"""
