"""What a child process that runs native code may do: the engine, and whoever else reads clients' or files'
input there.

Its parent starts it with `environment.child_environment()`. The child itself calls `confine.confine()` once:
when all of its code is imported, before it starts a thread, and before it opens a file that it does not
trust. Nothing here raises: where the kernel has none of it, the child runs as it would have, and what
`confine` returns says so in one line.
"""
