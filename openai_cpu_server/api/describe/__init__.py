"""`GET /openapi.json`: what clients are told of the routes."""
