"""Asyncio side of an engine process: an `Engine` for the API process, and the parent of the engine process.

A call is accepted (`calls`), its requests are live (`live`) and are sent to the present process (`replay`),
and their events return to the call. A replica's host (`replicas/host`) uses the parts below `client`.

Every accepted request ends exactly once. A process that dies or hangs is replaced, and its requests continue
without losses or repetitions. A request fails only for what it caused itself (`culprits`). All objects belong
to one event loop's thread, and no call blocks it.
"""
