"""Chat completions (`/v1/chat/completions`)."""
