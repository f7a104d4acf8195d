"""Texts become vectors or scores, in one step of an engine. A long input is rejected, or cut on request."""
