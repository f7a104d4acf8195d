"""Models that the settings name, and settings that are refused in one line.

tests/cli/test_bad_starts.py has more refusals."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.models.routing.options import Cascade, Classifier, Rule, Rules, WhenStreaming
from openai_cpu_server.server.model_builder import on_node
from openai_cpu_server.server.plans import ModelPlan, planned_models, router_options
from tests.tiny_model import tiny_model_path


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.gguf", "b.gguf", "x=y.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plans_of(files: Path, *arguments: str, toml: str = "") -> list[ModelPlan]:
    config = files / "c.toml"
    config.write_text(toml)
    return planned_models(read_settings(["--config", str(config), *arguments]))


@pytest.mark.parametrize(
    ("arguments", "environment", "names"),
    [
        ("--model a.gguf", "", ["a"]),
        ("--model a.gguf --served-model-name me", "", ["me"]),
        ("--model one=a.gguf --model b.gguf --model=team/two=b.gguf", "", ["one", "b", "team/two"]),
        ("--model x=y.gguf", "", ["x=y"]),  # a file of that name exists
        ("", "a.gguf", ["a"]),
        ("", '["one=a.gguf", "b.gguf"]', ["one", "b"]),
    ],
)
def test_models_have_names_and_the_order_of_the_options(
    files: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, environment: str, names: list[str]
) -> None:
    monkeypatch.setenv("OCS_MODEL", environment)
    plans = plans_of(files, *arguments.split(), "--ctx-size", "512")
    assert [plan.name for plan in plans] == names
    assert {plan.path.suffix for plan in plans} == {".gguf"}
    assert {plan.options.ctx_size for plan in plans} == {512}


def test_an_engine_on_each_numa_node_is_for_one_model(files: Path) -> None:
    assert len(plans_of(files, "--model", "a.gguf", "--numa")) == 1
    with pytest.raises(StartupError, match="--numa cannot be combined with --gpu-layers"):
        plans_of(files, "--model", "a.gguf", "--numa", "--draft-model", "b.gguf", "--draft-gpu-layers", "2")


def test_memory_and_threads_are_divided_among_numa_nodes() -> None:
    nodes = {0: [0, 1], 1: [2, 3]}
    whole = EngineOptions(model_path="", cache_bytes=1000, cache_file="prefixes.cache")
    one, other = (on_node(whole, node, nodes) for node in nodes)
    assert 2 * one.threads <= max(2, Machine().num_threads())
    assert (one.cache_bytes, one.reads_weights, one.reports_forecast) == (500, True, True)
    assert (one.cache_file, other.cache_file) == ("prefixes.cache.node0", "prefixes.cache.node1")
    other = on_node(msgspec.structs.replace(whole, threads=3, cache_file=None), 1, nodes)
    assert (other.threads, other.cache_file) == (3, None)


def test_options_of_a_table_precede_those_of_the_server(files: Path) -> None:
    toml = """
    ctx_size = 1024
    threads = 1
    idle_unload = 60
    [models.one]
    source = "a.gguf"
    ctx_size = 512
    aliases = ["first"]
    pinned = true
    memory = 100
    [models.two]
    source = "b.gguf"
    keep_alive = 5
    [aliases]
    second = "2nd"
    "2nd" = "two"
    """
    one, two = plans_of(files, toml=toml)
    assert (one.names, two.names) == (("one", "first"), ("two", "second", "2nd"))
    assert (one.options.ctx_size, two.options.ctx_size) == (512, 1024)
    assert one.options.threads == two.options.threads == 1
    assert (one.is_pinned, one.keep_alive_s, one.memory_bytes) == (True, None, 100 * 2**20)
    assert (two.is_pinned, two.keep_alive_s, two.memory_bytes) == (False, 5, None)


def test_models_of_a_folder_are_planned_if_options_name_them(files: Path) -> None:
    folder = ("--models-dir", str(files))
    toml = """
    [models.b]
    ctx_size = 512
    [aliases]
    first = "a"
    """
    plans = plans_of(files, *folder, toml=toml)
    assert [(plan.names, plan.waits_for_requests) for plan in plans] == [
        (("b",), False),
        (("a", "first"), True),
    ]
    assert (plans[0].path, plans[0].options.ctx_size) == (files / "b.gguf", 512)
    (named,) = plans_of(files, *folder, "--model", "x=y")
    assert (named.name, named.path, named.waits_for_requests) == ("x=y", files / "x=y.gguf", False)
    (files / "0.gguf").symlink_to(tiny_model_path())
    (default,) = plans_of(files, *folder)
    assert (default.name, default.waits_for_requests) == ("0", True)


def test_tables_of_routers_are_not_models(files: Path) -> None:
    toml = """
    [models.small]
    source = "a.gguf"
    [models.large]
    source = "b.gguf"
    [models.auto]
    aliases = ["best"]
    router = { small = "small", large = "large", by = "cascade", cascade = { mean_logprob = -0.5 } }
    [models.tools.router]
    by = "rules"
    plain = "auto"
    able = "large"
    rules = [{ route = "able", tools = true, prompt_tokens_over = 9 }]
    [models.classified.router]
    by = "classifier"
    a = "small"
    b = "large"
    otherwise = "b"
    classifier = { model = "small", prompt = "{routes}: {request}" }
    [aliases]
    default = "tools"
    """
    plans = plans_of(files, toml=toml)
    cascade, rules, classifier = router_options(read_settings(["--config", str(files / "c.toml")]), plans)
    assert [plan.name for plan in plans] == ["small", "large"]
    assert (cascade.names, rules.names) == (("auto", "best"), ("tools", "default"))
    assert cascade.way == Cascade(
        small="small", large="large", mean_logprob=-0.5, when_streaming=WhenStreaming.HOLD
    )
    assert rules.way == Rules((Rule(route="able", tools=True, prompt_tokens_over=9),))
    assert (rules.routes, rules.otherwise) == ({"plain": "auto", "able": "large"}, "plain")
    assert classifier.way == Classifier(model="small", prompt="a, b: {request}", timeout_s=10)
    assert classifier.otherwise == "b"


WRONG_ROUTERS = [
    ('by = "rules", a = "x", shares = { weights = { a = 1 } }', "chooses by 'rules', and has 'shares'"),
    ('by = "rules", rules = [{ route = "a", tools = true }]', "has no routes"),
    ('by = "rules", a = "x", rules = [{ route = "b", tools = true }]', "unknown route 'b'; the routes are a"),
    ('by = "rules", a = "x", rules = [{ route = "a" }]', "needs a condition"),
    ('by = "rules", a = "x", rules = [{ route = "a", tool = true }]', "tool: "),
    ('by = "rules", a = 1, rules = [{ route = "a", tools = true }]', "router a: "),
    ('by = "rules", a = "x", otherwise = "b", rules = [{ route = "a", tools = true }]', "unknown route 'b'"),
    ('by = "cascade", small = "x", cascade = { mean_logprob = -1 }', "unknown route 'large'"),
    ('by = "cascade", small = "x", large = "y", cascade = { mean_logprob = 1 }', "mean_logprob: "),
    ('by = "shares", a = "x", shares = { weights = { a = -1 } }', "weights a: "),
    ('by = "classifier", a = "x", classifier = { model = "x", prompt = "?" }', "contain {request}"),
    ('by = "examples", a = "x", examples = { model = "x", texts = { a = [] } }', "texts a: "),
    ('by = "examples", a = "x", examples = { model = "x", texts = { b = ["b"] } }', "unknown route 'b'"),
]


ROUTER = 'router = { by = "shares", a = "a", shares = { weights = { a = 1 } } }'


@pytest.mark.parametrize(
    ("arguments", "toml", "line"),
    [
        (("--model", "a.gguf"), '[models.a]\nsource = "b.gguf"', "two models have the name 'a'"),
        (("--model", "a.gguf"), '[aliases]\nx = "y"', "unknown model 'y'; the models are a"),
        (("--model", "a.gguf"), '[aliases]\na = "a"', "two models have the name 'a'"),
        ((), '[models.a]\nsource = "a.gguf"\nfoo = 1', r"\[models.a\] foo: "),
        ((), '[models.a]\nsource = "a.gguf"\nctx_size = 1', r"\[models.a\] ctx_size: "),
        (("--model", "a.gguf", "--model", "c.gguf"), "", "the file c.gguf does not exist"),
        (("--model", "a.gguf"), f"[models.a]\n{ROUTER}", "two models have the name 'a'"),
        (("--model", "a.gguf"), f"[models.r]\npinned = true\n{ROUTER}", "a router has no 'pinned'"),
        (("--models-dir", ".", "--model", "a.gguf", "--cache-file", "c"), "", "each its own"),
        *(
            (("--model", "x=a.gguf"), f"[models.r]\nrouter = {{ {fields} }}", line)
            for fields, line in WRONG_ROUTERS
        ),
    ],
)
def test_a_contradiction_is_one_line(files: Path, arguments: tuple[str, ...], toml: str, line: str) -> None:
    with pytest.raises(StartupError, match=line) as error:
        plans_of(files, *arguments, toml=toml)
    assert "\n" not in str(error.value)
