"""Processes that run native code on clients' or files' input: how they are started, and what they may do.

A parent calls `spawn`: `engine_client` and `reader` do, and the commands that quantize and tune. The child
calls `signals` first of all, and `confine.confine()` once: when all of its code is imported, before it starts
a thread, and before it opens a file that it does not trust. Nothing here raises: where the kernel has none of
it, the child runs as it would have, and what `confine` returns says so in one line. It knows nothing of what
the child is for.
"""
