"""Routers: names that choose one of several models for each request.

The API calls `follow` for a request that names a router, and `verdict` when a cascade's small model has
answered. The start checks the options. A router always decides, even if its model fails.
"""
