"""The Responses API: its part of this room."""
