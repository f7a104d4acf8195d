"""The page for browsers: its sources, and the bundle that `scripts/page` builds of them.

The API's routes serve `Bundle` unchanged. The package knows no HTTP and no model.
"""
