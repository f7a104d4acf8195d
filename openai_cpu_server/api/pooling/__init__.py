"""Texts become vectors or scores, in one step of an engine. An input that is too long is rejected, or cut if
the client requests it."""
