"""Processes that run native code on input of clients or files, and their restrictions. Parents call `spawn`.
The child calls `signals` first, and `confine.confine()` once: after its imports, before it starts a thread or
opens an untrusted file. Features that the kernel lacks are left out, and `confine` returns which."""
