"""`/api/chat`, `/api/generate` and what else Ollama's clients ask for, told as lines of JSON.

`api/application.py` names its routes, and requests reach them behind the gate; `api/asking` calls the
renderers. Promises: an answer streams unless `stream` is false; fields for Ollama's own runner are ignored,
and a header names them; what would change the answer and is not built is refused. `/api/embed` stands in
`api/pooling`, which alone knows how texts become vectors.
"""
