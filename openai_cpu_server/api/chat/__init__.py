"""Chat completions (`/v1/chat/completions`): a body becomes a `GenerationParams`, and events of the engine
become chunks or one answer. Callers: `api/application.py` lists its routes; `api/generation` calls
`chat_params` once per body and the renderer once per answer. Promises: it knows no engine, and error objects
name fields as the client has written them."""
