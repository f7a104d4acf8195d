"""Models that are none: a router chooses, for each request, which of several models answers.

The API calls `follow` for a request that names a router, and `verdict` when a cascade's small model has
answered; the start checks the options.
Promises: a router always decides, whatever fails meanwhile; the same label gets the same share; the
answer says why in a header.
"""
