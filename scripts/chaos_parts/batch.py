"""A batch while the whole server is killed and restarted. Every row must be there once."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from chaos_parts.server import Server

_LOOK_S = 0.02
_TIMEOUT_S = 60


@dataclass
class BatchFigures:
    kills: int
    rows: int
    lost: int
    doubled: int
    failed: int
    miscounted: int
    status_5xx: int
    memory_start_mib: float
    memory_end_mib: float
    wall_s: float

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.doubled or self.failed or self.miscounted or self.status_5xx)


def run_batch(model: Path, folder: Path, *, rows: int, kills: int, tokens: int, seed: int) -> BatchFigures:
    chance, began_s = random.Random(seed), time.monotonic()
    num_kills, statuses = 0, Counter[bool]()

    def get(path: str) -> httpx.Response:
        answer = httpx.get(server.url + path, timeout=_TIMEOUT_S)
        statuses[answer.status_code >= 500] += 1
        return answer

    def batch() -> dict[str, Any]:
        return dict(get(f"/v1/batches/{batch_id}").json())

    def until(completed: int) -> dict[str, Any]:
        while True:
            found = batch()
            if _has_ended(found) or (found.get("request_counts") or {}).get("completed", 0) >= completed:
                return found
            time.sleep(_LOOK_S)

    def ids(file_id: str | None) -> Counter[str]:
        lines = get(f"/v1/files/{file_id}/content").text.splitlines() if file_id else []
        return Counter(json.loads(line)["custom_id"] for line in lines)

    with ExitStack() as running:
        server = running.enter_context(_server(model, folder, 0))
        start_mib = server.rss_mib()
        batch_id = _begin(server.url, rows, tokens)
        for moment in sorted(chance.randrange(rows * 3 // 4) for _ in range(kills)):
            until(moment)
            time.sleep(chance.uniform(0, 0.1))
            if _has_ended(batch()):
                break
            server.kill_all()
            num_kills += 1
            server = running.enter_context(_server(model, folder, num_kills))
        ended = until(rows + 1)
        failed = ids(ended["error_file_id"])
        counts = ids(ended["output_file_id"]) + failed
        return BatchFigures(
            kills=num_kills,
            rows=rows,
            lost=sum(f"row-{n}" not in counts for n in range(rows)),
            doubled=sum(count - 1 for count in counts.values()),
            failed=sum(failed.values()),
            miscounted=abs(rows - ended["request_counts"]["completed"]),
            status_5xx=statuses[True],
            memory_start_mib=start_mib,
            memory_end_mib=server.rss_mib(),
            wall_s=time.monotonic() - began_s,
        )


def _server(model: Path, folder: Path, number: int) -> Server:
    """Few rows at once make many moments at which only some are done."""
    options = ("--jobs-db", str(folder / "jobs.db"), "--batch-concurrency", "8")
    return Server([f"chaos={model}"], folder / f"batch-{number}.log", *options)


def _begin(url: str, rows: int, tokens: int) -> str:
    body = {"model": "chaos", "max_tokens": tokens, "temperature": 0}
    row = {"method": "POST", "url": "/v1/completions"}
    lines = "\n".join(
        json.dumps({**row, "custom_id": f"row-{n}", "body": {**body, "prompt": f"Row {n}:"}})
        for n in range(rows)
    )
    files = {"file": ("rows.jsonl", lines.encode())}
    upload = httpx.post(f"{url}/v1/files", data={"purpose": "batch"}, files=files, timeout=_TIMEOUT_S)
    batch = {"endpoint": "/v1/completions", "completion_window": "24h", "input_file_id": upload.json()["id"]}
    made = httpx.post(f"{url}/v1/batches", json=batch, timeout=_TIMEOUT_S)
    return str(made.raise_for_status().json()["id"])


def _has_ended(batch: dict[str, Any]) -> bool:
    return batch.get("status") in ("completed", "failed", "expired", "cancelled")
