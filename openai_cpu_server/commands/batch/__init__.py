"""`openai-cpu-server batch FILE.jsonl -o OUT.jsonl`: runs one batch here, without a server."""

from openai_cpu_server.commands.batch.command import batch

__all__ = ["batch"]
