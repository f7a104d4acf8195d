"""The asyncio side of an engine process: for the API process an `Engine`, for the engine its only parent.

`server` makes a `Supervisor` and an `EngineClient` for each model; the API's generation service calls the
client, and a replica's host (`replicas/host`) the parts below it. A request is accepted (`admission`), lives
(`live`), is sent to whichever process is ready (`replay`), and is told of as it goes on (`answers`).
Promises: every accepted request has exactly one end; a process that dies or hangs is replaced, and what it
had goes on with the tokens so far, nothing lost and nothing twice; a request fails only for what it did
itself (`culprits`). All belongs to one event loop's thread, and nothing blocks it. It knows no scheduler and
no llama.
"""
