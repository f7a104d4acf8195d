"""Processes that run native code on input of clients or files: how they are started and restricted.

Parents (`engine_client`, `reader`, the commands that quantize and tune) call `spawn`. The child calls
`signals` first, and `confine.confine()` once: after its imports, before it starts a thread or opens an
untrusted file. Confinement never fails a child. If the kernel lacks a feature, the child runs without it, and
the result of `confine` says so in one line.
"""
