"""Every option, route, error, metric and term of the code is in the manual."""

from __future__ import annotations

import re

import pytest
from bench.peers import KEYS
from bench.servers import Variant
from bench.workloads import WORKLOADS
from llama_server_suite.outcomes import Differences
from manual.options import option
from manual.pages import pages

from openai_cpu_server.api.application import ROWS
from openai_cpu_server.config.models import ModelOptions, ModelTable
from openai_cpu_server.config.settings import Settings
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.http.errors import TABLE
from openai_cpu_server.model_source.aliases import ALIASES, MODELS_BY_ALIAS
from tests.docs.markdown import DOCS, ROOT
from tests.observe.families import families


def first_cells(page: str) -> list[str]:
    """Return the code in the first cell of each row of the page's tables."""
    return re.findall(r"^\| `([^`]+)`", (DOCS / page).read_text(), re.MULTILINE)


def test_generated_pages_are_up_to_date() -> None:
    for name, text in pages().items():
        assert (DOCS / name).read_text() == text, f"{name}: run scripts/docs build"


def test_every_option_and_route_is_documented() -> None:
    for_users = [name for name, field in Settings.model_fields.items() if field.description]
    assert Settings.model_fields.keys() - {*for_users} == {"numa_folder", "experiment", "url_fd"}
    of_tables = ModelTable.model_fields.keys() - ModelOptions.model_fields.keys()
    assert {*map(option, for_users), *ALIASES, *of_tables} <= set(first_cells("options.md"))
    routes = {row.name.replace("WEBSOCKET", "GET") for row in ROWS}
    assert {cell for cell in first_cells("routes.md") if " /" in cell} == routes
    api = (DOCS / "api.md").read_text()
    assert [row.path for row in ROWS if row.path.partition("/{")[0] not in api] == [], "not in docs/api.md"


def test_models_are_documented_with_their_sizes_and_formats() -> None:
    page = (DOCS / "models.md").read_text()
    cells = [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    rows = {row[0]: row[1:] for row in cells if len(row) == 6}
    for name, model in MODELS_BY_ALIAS.items():
        assert f"`{name}`" in page
        if model.kind is ModelKind.GENERATES:
            size, cell, *others = rows[name]
            number, unit = size.split()
            assert float(number) == pytest.approx(model.gigabytes * {"GB": 1, "MB": 1000}[unit], rel=0.01)
            assert cell == (f"{model.cell_bytes / 1024:,.0f} KiB" if model.cell_bytes else "")
            state = f"{model.state_mib:g} MiB" if model.state_mib else ""
            assert others == [state, model.tools or "", model.thoughts or ""]


def test_every_error_metric_and_workload_is_documented() -> None:
    errors, benchmark = ((DOCS / name).read_text() for name in ("errors.md", "benchmark.md"))
    codes = [failure.code for failure in TABLE.values() if failure.code]
    assert [code for code in codes if f"`{code}`" not in errors] == []
    assert set(first_cells("metrics.md")) >= set(families())
    names = {*(variant.key for variant in Variant), *KEYS, *WORKLOADS}
    assert [name for name in names if f"`{name}`" not in benchmark] == []


def test_differences_and_omissions_of_llama_servers_tests_are_documented() -> None:
    page, differences = (DOCS / "llama-server.md").read_text("utf-8"), Differences.read()
    section = page.split("## llama-server's own tests")[1]
    assert {*re.findall(r"^\| \d+ \| (.*) \|$", section, re.MULTILINE)} == {*differences.causes}
    assert dict(re.findall(r"^\| `(test_.*)` \| (.*) \|$", section, re.MULTILINE)) == differences.left_out


def test_each_term_of_the_glossary_is_unique_and_its_class_exists() -> None:
    text = (DOCS / "contributing.md").read_text("utf-8")
    glossary = text.partition("## Glossary")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w ]+) \| .+ \| `(\w+)` \| `([\w/.]+)` \|$", glossary, re.MULTILINE)
    assert len(rows) == glossary.count("\n| ") - 2
    assert len({term for term, _, _ in rows}) == len(rows) <= 40
    for _, name, file in rows:
        source = (ROOT / "openai_cpu_server" / file).read_text("utf-8")
        assert re.search(rf"^class {name}\b", source, re.MULTILINE), f"{name} is not defined in {file}"
