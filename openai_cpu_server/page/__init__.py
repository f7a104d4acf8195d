"""The page that people open in a browser: its sources, and what `scripts/page` has built of them.

The API's routes serve `Bundle` as it is. It knows no HTTP and no model.
"""
