"""Routers: names that choose a model for each request.

The API calls `follow` for a router, and `verdict` when a cascade's small model has answered. A router always
decides, even if its model fails.
"""
