"""Bodies as clients write them: types and ranges. What they mean is decided in `resolve`."""
