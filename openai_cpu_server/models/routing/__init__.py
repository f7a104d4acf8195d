"""Models that are none: a router chooses, for each request, which of several models answers."""
