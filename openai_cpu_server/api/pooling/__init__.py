"""`/v1/embeddings` and `/v1/rerank`: texts become vectors or scores, in one step of an engine. Responses
are not streamed. An input that is too long is rejected, or cut if the client requests it."""
