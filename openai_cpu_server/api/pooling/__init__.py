"""`/v1/embeddings` and `/v1/rerank`: texts become vectors or scores, in one step of an engine.

Routes and the rows of batches call it. Nothing is streamed; an input that is too long is refused, or cut
where the client asks for that.
"""
