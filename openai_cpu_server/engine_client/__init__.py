"""Asyncio side of an engine process: an `Engine` for the API process, and the parent of the engine process.

`server` makes a `Supervisor` and an `EngineClient` for each model. The API's generation service calls the
client, and a replica's host (`replicas/host`) the parts below it. A call is accepted (`calls`), its requests
are live (`live`) and are sent to the present process (`replay`), and their events return to the call.

Every accepted request ends exactly once. A process that dies or hangs is replaced, and its requests continue
with their tokens so far, without losses or repetitions. A request fails only for what it caused itself
(`culprits`). All objects belong to one event loop's thread, and no call blocks it. The package does not
import the scheduler or llama.
"""
