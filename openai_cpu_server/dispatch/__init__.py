"""The asyncio side of an engine: its process, the live requests, and what becomes of them when it dies."""
