"""`openai-cpu-server batch FILE.jsonl -o OUT.jsonl`: runs one batch here, without a server."""
