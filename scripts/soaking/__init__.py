"""Mixed traffic for hours, and what it does to the server."""
