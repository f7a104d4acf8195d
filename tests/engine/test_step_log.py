"""The log of steps, which names who was in each."""

from __future__ import annotations

import logging

import pytest

from openai_cpu_server.contract.messages import EngineOptions, Submit
from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine.generating import EngineCore, build_core
from tests.fakes import FakeBackend
from tests.scheduler.driver import request

LOGGER = "openai_cpu_server.engine.trace"


def core() -> EngineCore:
    curve = CostCurve(step_ms=((1, 5.0), (256, 1000.0)), attended_ms=0.0)
    made = build_core(EngineOptions(model_path="", speculation="off"), FakeBackend(), curve)
    made.handle(Submit(request=request("chat", prompt=3, output=2)))
    made.handle(Submit(request=request("job", prompt=4, output=1, priority=Priority.BATCH)))
    return made


def run(engine: EngineCore) -> None:
    while engine.has_work:
        list(engine.step())


def test_each_step_is_told_with_who_was_in_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=LOGGER)
    run(core())
    steps = [record.fields for record in caplog.records]
    parts = [
        (part["id"], part["priority"], part["tokens"], part["decodes"], part["why"])
        for step in steps
        for part in step["spans"]
    ]
    assert sorted(parts) == [
        ("chat", "interactive", 1, True, {"decode": 1}),
        ("chat", "interactive", 3, False, {"prompt": 3}),
        ("job", "batch", 4, False, {"prompt": 4}),
    ]
    assert all(step["elapsed_ms"] >= 0 and step["interrupted"] is False for step in steps)
    assert [step["started_s"] for step in steps] == sorted(step["started_s"] for step in steps)
    assert "tokens of" in caplog.records[0].getMessage()


def test_nothing_is_told_at_other_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER)
    run(core())
    assert caplog.records == []
