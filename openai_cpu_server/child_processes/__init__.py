"""Processes that run native code on input of clients or files: how they are started and restricted.

A parent calls `spawn`: `engine_client`, `reader`, and the commands that quantize and tune. The child calls
`signals` first, and `confine.confine()` once: after importing all of its code, before it starts a thread, and
before it opens an untrusted file. Confinement never fails a child: if the kernel lacks a feature, the child
runs without it, and the result of `confine` says so in one line. The room does not know what the child is
for.
"""
