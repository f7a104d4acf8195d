"""Every option, route, error and metric is in the manual, as the code has it."""

from __future__ import annotations

import re

import pytest
from bench.contestants import Variant
from bench.peers import KEYS
from bench.workloads import WORKLOADS
from manual.options import option
from manual.pages import pages

from openai_cpu_server.api.application import ROWS
from openai_cpu_server.config.models import ModelOptions, ModelTable
from openai_cpu_server.config.settings import Settings
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.http.errors import TABLE
from openai_cpu_server.model_source.aliases import ALIASES, KNOWN_MODELS
from tests.docs.markdown import DOCS
from tests.observe.families import families


def first_cells(page: str) -> list[str]:
    """The code in the first cell of each row of the page's tables."""
    return re.findall(r"^\| `([^`]+)`", (DOCS / page).read_text(), re.MULTILINE)


def test_pages_that_are_made_from_the_code_are_what_it_says_now() -> None:
    for name, text in pages().items():
        assert (DOCS / name).read_text() == text, f"{name}: run scripts/docs build"


def test_every_option_is_there_with_what_it_is_for() -> None:
    shown = [cell for cell in first_cells("options.md") if cell.startswith(("--", "["))]
    hidden = [name for name, field in Settings.model_fields.items() if not field.description]
    for_users = [name for name in Settings.model_fields if name not in hidden]
    assert shown == [*map(option, for_users), "--model"]  # of the aliases' heading
    tables = set(ModelTable.model_fields) - set(ModelOptions.model_fields)
    assert tables <= set(first_cells("options.md"))
    assert hidden == ["numa_folder", "experiment"]


def test_every_alias_and_every_route_is_there() -> None:
    assert set(ALIASES) <= set(first_cells("options.md"))
    routes = {row.name.replace("WEBSOCKET", "GET") for row in ROWS}
    assert {cell for cell in first_cells("routes.md") if " /" in cell} == routes


def test_the_names_of_models_are_there_with_what_they_need() -> None:
    page = (DOCS / "models.md").read_text()
    cells = [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    rows = {row[0]: row[1:] for row in cells if len(row) == 6}
    for name, known in KNOWN_MODELS.items():
        assert f"`{name}`" in page
        if known.kind is ModelKind.GENERATES:
            size, cell, *others = rows[name]
            number, unit = size.split()
            assert float(number) == pytest.approx(known.gigabytes * {"GB": 1, "MB": 1000}[unit], rel=0.01)
            assert cell == (f"{known.cell_bytes / 1024:,.0f} KiB" if known.cell_bytes else "")
            state = f"{known.state_mib:g} MiB" if known.state_mib else ""
            assert others == [state, known.tools or "", known.thoughts or ""]


def test_the_page_about_the_api_explains_every_route() -> None:
    api = (DOCS / "api.md").read_text()
    paths = {row.path.partition("/{")[0] for row in ROWS}
    assert [path for path in paths if path not in api] == []


def test_every_error_is_there() -> None:
    page = (DOCS / "errors.md").read_text()
    assert [
        failure.code for failure in TABLE.values() if failure.code and f"`{failure.code}`" not in page
    ] == []


def test_every_metric_is_there_with_its_labels() -> None:
    assert set(first_cells("metrics.md")) >= set(families())
    page = (DOCS / "metrics.md").read_text()
    assert "| `ocs_requests_total` | counter | `method`, `origin`, `priority`, `route`, `status` |" in page
    assert "| `ocs_inter_token_seconds` | histogram | `priority`, `route` |" in page


def test_every_server_and_every_workload_of_the_benchmark_is_there() -> None:
    page = (DOCS / "benchmark.md").read_text()
    names = {*(variant.key for variant in Variant), *KEYS, *WORKLOADS}
    assert [name for name in names if f"`{name}`" not in page] == []
