"""`/v1/embeddings` and `/v1/rerank`: texts become vectors or scores, in one step of an engine.
`api/application.py` lists its routes, which serve requests and rows of batches.

Responses are not streamed. An input that is too long is rejected, or cut if the client asks for it.
"""
