"""Chat completions (`/v1/chat/completions`): a body becomes a `GenerationParams`, and events of the engine
become chunks or one answer. Error objects name fields as the client has written them."""
