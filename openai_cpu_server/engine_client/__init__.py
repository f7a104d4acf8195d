"""Asyncio side of an engine process: an `Engine` for the API process, and the parent of the engine process.
Accepted calls (`calls`) are live requests (`live`), which `replay` sends to the present process; a replica's
host uses the parts below `client`. Every accepted request ends exactly once. A dead or hung process is
replaced without losses, and a request fails only for what it caused itself (`culprits`). All objects belong
to one event loop's thread, and no call blocks it."""
