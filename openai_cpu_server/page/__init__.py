"""The browsers' page: sources, and the bundle that `scripts/page` builds.

Routes serve `Bundle` unchanged. The package knows no HTTP and no model.
"""
