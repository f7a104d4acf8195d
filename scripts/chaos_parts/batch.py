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


@dataclass
class Asked:
    """HTTP to a server that was up. Failures because it was just killed do not count."""

    status_5xx: int = 0

    def get(self, url: str) -> httpx.Response:
        answer = httpx.get(url, timeout=60)
        self.status_5xx += answer.status_code >= 500
        return answer


def run_batch(model: Path, folder: Path, *, rows: int, kills: int, tokens: int, seed: int) -> BatchFigures:
    chance = random.Random(seed)
    moments = sorted(chance.randrange(rows * 3 // 4) for _ in range(kills))
    num_kills = 0
    asked, began = Asked(), time.monotonic()
    with ExitStack() as running:
        server = running.enter_context(_server(model, folder, 0))
        start_mib = server.rss_mib()
        batch_id = _begin(server, rows, tokens)
        for number, moment in enumerate(moments, 1):
            _until(asked, server, batch_id, moment)
            time.sleep(chance.uniform(0, 0.1))
            if _has_ended(_batch(asked, server, batch_id)):
                break
            server.kill_all()
            num_kills += 1
            server = running.enter_context(_server(model, folder, number))
        batch = _until(asked, server, batch_id, rows + 1)
        found = _ids(asked, server, batch["output_file_id"])
        failed = _ids(asked, server, batch["error_file_id"])
        counts = found + failed
        return BatchFigures(
            kills=num_kills,
            rows=rows,
            lost=sum(f"row-{n}" not in counts for n in range(rows)),
            doubled=sum(count - 1 for count in counts.values()),
            failed=sum(failed.values()),
            miscounted=abs(rows - batch["request_counts"]["completed"]),
            status_5xx=asked.status_5xx,
            memory_start_mib=start_mib,
            memory_end_mib=server.rss_mib(),
            wall_s=time.monotonic() - began,
        )


def _server(model: Path, folder: Path, number: int) -> Server:
    """Few rows at once make many moments at which some are done and some are not."""
    options = ("--jobs-db", str(folder / "jobs.db"), "--batch-concurrency", "8")
    return Server([f"chaos={model}"], folder / f"batch-{number}.log", *options)


def _begin(server: Server, rows: int, tokens: int) -> str:
    lines = b"".join(json.dumps(_row(number, tokens)).encode() + b"\n" for number in range(rows))
    upload = httpx.post(
        server.url + "/v1/files", data={"purpose": "batch"}, files={"file": ("rows.jsonl", lines)}, timeout=60
    )
    batch = {"endpoint": "/v1/completions", "completion_window": "24h"}
    made = httpx.post(
        server.url + "/v1/batches", json={**batch, "input_file_id": upload.json()["id"]}, timeout=60
    )
    return str(made.raise_for_status().json()["id"])


def _row(number: int, tokens: int) -> dict[str, object]:
    body = {"model": "chaos", "prompt": f"Row {number}:", "max_tokens": tokens, "temperature": 0}
    return {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/completions", "body": body}


def _until(asked: Asked, server: Server, batch_id: str, completed: int) -> dict[str, Any]:
    while True:
        batch = _batch(asked, server, batch_id)
        if _has_ended(batch) or (batch.get("request_counts") or {}).get("completed", 0) >= completed:
            return batch
        time.sleep(_LOOK_S)


def _batch(asked: Asked, server: Server, batch_id: str) -> dict[str, Any]:
    batch: dict[str, Any] = asked.get(f"{server.url}/v1/batches/{batch_id}").json()
    return batch


def _has_ended(batch: dict[str, Any]) -> bool:
    return batch.get("status") in ("completed", "failed", "expired", "cancelled")


def _ids(asked: Asked, server: Server, file_id: str | None) -> Counter[str]:
    if file_id is None:
        return Counter()
    lines = asked.get(f"{server.url}/v1/files/{file_id}/content").text.splitlines()
    return Counter(json.loads(line)["custom_id"] for line in lines)
