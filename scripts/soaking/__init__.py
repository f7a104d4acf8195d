"""Mixed traffic for hours, and its effect on the server."""
