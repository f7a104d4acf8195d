"""A response is stored before its client sees the end, one in the background even without a listener."""
