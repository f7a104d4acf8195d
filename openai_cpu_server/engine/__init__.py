"""The engine: `client` on the asyncio side; `process`, `loop` and `core` in the child; `channel` between."""
