"""`/v1/embeddings` and `/v1/rerank`: texts become vectors or scores, in one step of an engine.

`api/application.py` names its routes; requests and the rows of batches reach them. Promises: nothing is
streamed; an input that is too long is refused, or cut where the client asks for that.
"""
