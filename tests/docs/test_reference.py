"""Every option, route, error, metric and term is in the manual, as the code has it."""

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
from openai_cpu_server.model_source.aliases import ALIASES, KNOWN_MODELS
from tests.docs.markdown import DOCS, ROOT
from tests.observe.families import families


def first_cells(page: str) -> list[str]:
    """The code in the first cell of each row of the page's tables."""
    return re.findall(r"^\| `([^`]+)`", (DOCS / page).read_text(), re.MULTILINE)


def test_pages_that_are_made_from_the_code_are_what_it_says_now() -> None:
    for name, text in pages().items():
        assert (DOCS / name).read_text() == text, f"{name}: run scripts/docs build"


def test_every_option_and_route_is_there() -> None:
    for_users = [name for name, field in Settings.model_fields.items() if field.description]
    assert Settings.model_fields.keys() - {*for_users} == {"numa_folder", "experiment", "url_fd"}
    of_tables = ModelTable.model_fields.keys() - ModelOptions.model_fields.keys()
    assert {*map(option, for_users), *ALIASES, *of_tables} <= set(first_cells("options.md"))
    routes = {row.name.replace("WEBSOCKET", "GET") for row in ROWS}
    assert {cell for cell in first_cells("routes.md") if " /" in cell} == routes
    api = (DOCS / "api.md").read_text()
    assert [row.path for row in ROWS if row.path.partition("/{")[0] not in api] == [], "not in docs/api.md"


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


def test_every_error_metric_and_workload_is_there() -> None:
    errors, benchmark = ((DOCS / name).read_text() for name in ("errors.md", "benchmark.md"))
    codes = [failure.code for failure in TABLE.values() if failure.code]
    assert [code for code in codes if f"`{code}`" not in errors] == []
    assert set(first_cells("metrics.md")) >= set(families())
    names = {*(variant.key for variant in Variant), *KEYS, *WORKLOADS}
    assert [name for name in names if f"`{name}`" not in benchmark] == []


def test_differences_in_llama_servers_own_tests_and_the_tests_that_are_left_out_are_there() -> None:
    page, differences = (DOCS / "llama-server.md").read_text("utf-8"), Differences.read()
    section = page.split("## llama-server's own tests")[1]
    assert {*re.findall(r"^\| \d+ \| (.*) \|$", section, re.MULTILINE)} == {*differences.causes}
    assert dict(re.findall(r"^\| `(test_.*)` \| (.*) \|$", section, re.MULTILINE)) == differences.left_out


def test_each_term_of_the_glossary_stands_once_and_its_name_is_defined_where_it_says() -> None:
    text = (DOCS / "contributing.md").read_text("utf-8")
    glossary = text.partition("## Glossary")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w ]+) \| .+ \| `(\w+)` \| `([\w/.]+)` \|$", glossary, re.MULTILINE)
    assert len(rows) == glossary.count("\n| ") - 2
    assert len({term for term, _, _ in rows}) == len(rows) <= 40
    for _, name, file in rows:
        source = (ROOT / "openai_cpu_server" / file).read_text("utf-8")
        assert re.search(rf"^class {name}\b", source, re.MULTILINE), f"{name} is not defined in {file}"
