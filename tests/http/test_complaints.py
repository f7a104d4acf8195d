"""Malformed requests in the log: the first one has a line, later ones share a line."""

from __future__ import annotations

import pytest

from openai_cpu_server.http.server import Complaints


def test_a_line_counts_the_malformed_requests_since_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    complaints = Complaints(lambda: now_s)
    for _ in range(5):
        complaints.note(("192.0.2.1", 5), "no HTTP")
    now_s = 109.0
    complaints.note(None, "no HTTP")
    now_s = 110.0
    complaints.note(("192.0.2.2", 5), "no WebSocket")
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "malformed requests: 1; the last, from 192.0.2.1: no HTTP",
        "malformed requests: 6; the last, from 192.0.2.2: no WebSocket",
    ]
