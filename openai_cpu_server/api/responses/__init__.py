"""`/v1/responses`: items become a conversation, outputs become items, and both can be stored. A response
runs as every `GenerationParams`, and is stored before its client sees the end. A background response ends
in the database even without a listener. A batch row is stored only on demand."""
