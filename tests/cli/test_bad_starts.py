"""Refused starts: each ends with one line that names the option, before the server listens."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_cpu_server.cli.serve import serve
from openai_cpu_server.errors import StartupError

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("no_ocs_variables")]


def error_of(*arguments: str) -> str:
    """Return the error line of a start. A server that listens fails the test."""

    def listening(url: str) -> None:
        pytest.fail(f"the server listens on {url}")

    names = {argument.partition("=")[0] for argument in arguments}
    defaults = [
        option for option in ("--jobs-db=none", "--calibrate=never") if option.split("=")[0] not in names
    ]
    with pytest.raises(StartupError) as error:
        serve([*defaults, *arguments], on_listening=listening)
    (line,) = str(error.value).splitlines()
    return line


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "empty").write_text("")
    (folder / "broken.toml").write_text("x = [")
    (folder / "bad.gguf").write_bytes(b"GGUF\x03\0\0\0")
    return folder


CONTRADICTIONS = [
    ("--ssl-keyfile k.pem", "--ssl-keyfile and --ssl-keyfile-password need --ssl-certfile"),
    ("--ssl-keyfile-password x", "--ssl-keyfile and --ssl-keyfile-password need --ssl-certfile"),
    ("--model b=demo --served-model-name x", "--served-model-name is for one model"),
    ("--model demo", "two models have the name 'demo'"),
    ("--model b=demo --numa", "--numa is for a server with one model"),
    ("--numa --memory 100", "--numa is for a server with one model"),
    ("--numa --allow-pull", "--numa is for a server with one model"),
    ("--numa --gpu-layers 1", "--numa cannot be combined with --gpu-layers"),
    ("--model b=demo --cache-file c", "--cache-file is for one model"),
    ("--model b=demo --adapter a=x", "--adapter a: name its model"),
    ("--adapter x/a=b", "--adapter: unknown model x; the models are demo"),
    ("--adapter a=b --adapter a=c", "the model demo has two adapters named 'a'"),
    ("--sampling-defaults openai --temperature 1", "sampling_defaults is 'openai', which contradicts"),
    ("--sampling-defaults vllm --top-k 1", "sampling_defaults is 'openai', which contradicts"),
    ("--max-output-tokens 9 --output-token-cap 8", "--max-output-tokens, or that of a model, is above"),
]
OUT_OF_RANGE = {
    "temperature": "3 -1 nan inf x",
    "top-p": "2 -1",
    "top-k": "-2 1.5",
    "min-p": "2 nan",
    "repeat-penalty": "0 -1",
    "presence-penalty": "3",
    "max-output-tokens": "-3 1e9",
    "output-token-cap": "0",
    "ctx-size": "0 255 99999999999999999999",
    "max-seqs": "0 255 -2",
    "threads": "0 513 -2",
    "prefill-tokens": "15 65537",
    "draft-max": "0 99999999999",
    "memory": "0 99999999999999999999",
    "cache-mb": "-1 9999999999999",
    "max-body-mb": "0 99999999999",
    "idle-unload": "0 nan inf",
    "stall-ms": "0 inf",
    "request-timeout": "0 nan",
    "read-timeout-s": "inf",
    "resume-seconds": "-1 3601",
    "port": "-1 65536 x",
    "batch-floor": "1.1",
    "semantic-cache": "0 1.1",
    "kv-type": "q4_0",
    "reasoning-format": "deepseek-v9",
    "trusted-proxy": "proxy.example",
    "allowed-host": "http://a",
    "cors-origin": "https://a/x https://a/ a.example https://*.a",
}
TABLES = [
    ("models = 3", "[models]: must be a table"),
    ("[models]\na = 1", "[models.a]: must be a table"),
    ('[models.a]\nsource = "demo"\ntemperature = "hot"', "[models.a] temperature: "),
    ('[models.a]\nsource = "demo"\nctx_size = 1.5', "[models.a] ctx_size: "),
    ('[models.a]\nsource = "demo"\nkeep_alive = inf', "[models.a] keep_alive: "),
    ('[models.a]\nsource = "demo"\npinned = "perhaps"', "[models.a] pinned: "),
    ("[models.a]\nsource = 3", "[models.a] source: "),
    ('[models.a]\nsource = "demo"\naliases = "x"', "[models.a] aliases: "),
    ('[models.a]\nsource = "demo"\naliases = ["demo"]', "two models have the name 'demo'"),
    ('[models.a]\nsource = "demo"\nadapters = []', "[models.a] adapters: adapters are a table"),
    ('[models.a]\nsource = "demo"\nadapters = {x = 3}', "[models.a] adapters: adapter x: write x = "),
    ('[models.a]\nsource = "demo"\nadapters = {x = {}}', "[models.a] adapters: adapter x: write x = "),
    ('[models.a]\nsource = "demo"\nadapters = {"" = "x"}', "[models.a] adapters: '' is not a valid"),
    ('[models.demo.adapters.x]\npath = "x"\ny = 1', "[models.demo] adapters: adapter x: unknown option 'y'"),
    ('[models.demo.adapters.x]\npath = "x"\nscale = "1"', "[models.demo] adapters: adapter x: scale must"),
    ('[models.a]\nsource = "demo"\nport = 3', "[models.a] port: unknown option"),
    ('[models.a]\nsource = "demo"\nsampling_defaults = "openai"\ntop_k = 3', "[models.a]: sampling_defaults"),
    ("[models.nothing]", "unknown model 'nothing'"),
    ('output_token_cap = 8\n[models.a]\nsource = "demo"\nmax_output_tokens = 9', "--max-output-tokens, or"),
    ("[[models]]\na = 1", "[models]: must be a table"),
    ("aliases = 1", "[aliases]: must be a table"),
    ("[aliases]\nx = 3", "[aliases] x: must be a valid string"),
    ('[aliases]\na = "b"\nb = "a"', "[aliases] a -> b -> a is a loop"),
    ('[aliases]\na = "nothing"', "[aliases] a: unknown model 'nothing'"),
    ("[prices]\nx = 1", "[prices.x]: must be a table"),
    ("[prices.demo]\ninput = inf\noutput = 1", "[prices.demo] input: "),
    ("ray = 3", "[ray]: must be a table"),
    ("[ray]\nreplicas = 3\nmax_replicas = 1", "[ray]: max_replicas is less than replicas"),
    ("mcp = 1", "[mcp]: must be a table"),
    ("[mcp.x]", "[mcp.x]: give it a command or a url"),
    ('[mcp.x]\ncommand = ["a"]', "[mcp.x] command: "),
    ('[mcp.x]\ncommand = "a"\nheaders = {}', "[mcp.x]: 'headers' needs a url"),
    ('[mcp.x]\nurl = "https://x"\nargs = ["b"]', "[mcp.x]: 'args' needs a command"),
    ('[mcp.x]\nurl = "file:///x"', "[mcp.x] url: "),
    ('[mcp.x]\ncommand = "a"\nenv = {A = "${NOPE}"}', "[mcp.x] env: the environment has no variable NOPE"),
    ('[mcp."a b"]\ncommand = "a"', "[mcp.a b] [key]: "),
    ("[models.r]\nrouter = 3", "[models.r] router: must be a table"),
    ('[models.r.router]\nby = "magic"', "[models.r] router by: "),
    ('[models.r.router]\nby = "rules"\na = "demo"', "[models.r] router: the router chooses by 'rules'"),
    (
        '[models.r.router]\nby = "shares"\na = "demo"\nshares = {weights = {a = 0}}',
        "[models.r] router shares: the weights are all 0",
    ),
    ("port = 1\nport = 2", "cannot read "),
    ("port = [1]", "--port: "),
    ("port = 1.5", "--port: "),
    ("port = 2020-01-01", "--port: "),
    ('api_key = ["a"]', "--api-key: "),
    ("host = 3", "--host: "),
    ("model = [3]", "--model"),
    ('cors_origin = "https://a"', "--cors-origin: "),
    ("experiment = 3", "--experiment: "),
    ("ctx_size = 99999999999999999999", "--ctx-size: "),
]
MISSING = [
    ("--config {folder}", "the configuration file"),
    ("--models-dir /nowhere", "--models-dir: the folder /nowhere does not exist"),
    ("--mmproj /nowhere.gguf", "--mmproj: the file /nowhere.gguf does not exist"),
    ("--host nosuch.invalid", "cannot listen on nosuch.invalid:"),
    ("--host 203.0.113.9", "cannot listen on 203.0.113.9:"),
    ("--port {port}", "Address already in use"),
]
AT_ONCE = [
    ("--memory 1", "(--memory 1 MiB)"),
    ("--ctx-size 2000000000", "Not enough memory for the KV pool"),
    ("--ssl-certfile /nowhere.pem", "cannot use --ssl-certfile /nowhere.pem"),
    ("--api-keys /nowhere.toml", "cannot read the keys of /nowhere.toml"),
]
FOUND_LATER = [
    ("--cache-dir {folder}/empty", "--cache-dir: {folder}/empty is not a folder"),
    ("--cache-file {folder}", "--cache-file: {folder} is a folder"),
    ("--chat-template /nowhere", "cannot read /nowhere"),
    ("--chat-template {folder}/empty", "contains no chat template"),
    ("--pin-prompt /nowhere", "cannot read /nowhere"),
    ("--pin-prompt {folder}/empty", "contains no text to pin"),
    ("--draft-model /nowhere.gguf", "the file /nowhere.gguf does not exist"),
    ("--draft-model {folder}/bad.gguf", "its header ends too early"),
    ("--mmproj {folder}/bad.gguf", "its header ends too early"),
    ("--adapter a=/nowhere.gguf", "the file /nowhere.gguf does not exist"),
    ("--adapter-dir /nowhere", "--adapter-dir: the folder /nowhere does not exist"),
    ("--media-dir /nowhere", "--media-dir: the folder /nowhere does not exist"),
    ("--semantic-cache-model x", "--semantic-cache-model needs --semantic-cache"),
    ("--semantic-cache 0.9 --answer-cache off", "--semantic-cache needs an --answer-cache"),
    ("--semantic-cache 0.9 --answer-cache memory", "--semantic-cache needs --semantic-cache-model"),
    ("--answer-cache {folder}", "is not a regular file"),
    ("--jobs-db {folder}", "is not a regular file"),
    ("--jobs-db mysql://x", "--jobs-db: mysql is not supported"),
    ("--limits-url http://x", "--limits-url: expected redis://HOST:PORT"),
    ("--otel-endpoint nonsense", "--otel-endpoint: expected http://HOST:PORT"),
    ("--api-keys {folder}/broken.toml", "cannot read the keys of"),
]


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(("arguments", "line"), [*CONTRADICTIONS, *MISSING])
def test_options_that_contradict_each_other_or_name_missing_things(
    arguments: str, line: str, folder: Path, taken_port: int
) -> None:
    options = arguments.format(folder=folder, port=taken_port).split()
    assert line in error_of("--model=demo", *options)


@pytest.mark.parametrize(
    ("option", "value"),
    [pair for option, values in OUT_OF_RANGE.items() for pair in itertools.product([option], values.split())],
)
def test_values_out_of_range(option: str, value: str) -> None:
    assert error_of("--model=demo", f"--{option}={value}").startswith(f"--{option}: ")


@pytest.mark.parametrize(("text", "line"), TABLES)
def test_tables_of_wrong_types(text: str, line: str, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    model = () if text.startswith("model =") else ("--model=demo",)
    assert error_of(f"--config={config}", *model).startswith(line)


@pytest.mark.parametrize(
    ("arguments", "line"), [*AT_ONCE, *(pytest.param(*each, marks=pytest.mark.slow) for each in FOUND_LATER)]
)
def test_errors_found_when_the_model_is_read(arguments: str, line: str, folder: Path) -> None:
    options = arguments.format(folder=folder).split()
    assert line.format(folder=folder) in error_of("--model=demo", "--port=0", *options)
