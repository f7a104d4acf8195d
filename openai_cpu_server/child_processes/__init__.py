"""Processes that run native code on input of clients or files: how they are started and restricted.

Parents call `spawn`. The child calls `signals` first, and `confine.confine()` once: after its imports, before
it starts a thread or opens an untrusted file. If the kernel lacks a feature, the child runs without it, and
the result of `confine` says so.
"""
