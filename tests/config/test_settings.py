"""Sources of options, and errors of wrong ones."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from openai_cpu_server.config.command_line import peer_options, peer_variables
from openai_cpu_server.config.folders import tune_engines
from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.config.settings import Settings, revealed
from openai_cpu_server.contract.mcp import McpLimits
from openai_cpu_server.contract.messages import AS_SERVED, EngineOptions, Experiment, Scheduling
from openai_cpu_server.contract.offload import ALL_LAYERS, ON_CPU, Offload
from openai_cpu_server.errors import StartupError

pytestmark = pytest.mark.usefixtures("no_ocs_variables")


SettingsOf = Callable[..., Settings]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "c.toml"


@pytest.fixture
def settings_of(config: Path) -> SettingsOf:
    """A function that reads settings from a file with a text."""

    def settings_of(text: str, *arguments: str) -> Settings:
        config.write_text(text)
        return read_settings(["--config", str(config), *arguments])

    return settings_of


def error_of(*arguments: str) -> str:
    with pytest.raises(StartupError) as error:
        read_settings(arguments)
    (line,) = str(error.value).splitlines()
    return line


def test_the_command_line_precedes_the_environment_which_precedes_the_file(
    config: Path, settings_of: SettingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment may also name the file."""
    monkeypatch.setenv("OCS_PORT", "2")
    monkeypatch.setenv("OCS_MODEL", "environment")
    settings = settings_of('port = 1\nmodel = "file"\nhost = "file"\nmax_seqs = 7', "--port", "3")
    assert (settings.port, settings.model, settings.host) == (3, ["environment"], "file")
    monkeypatch.setenv("OCS_CONFIG", str(config))
    assert read_settings([]).max_seqs == 7


def test_secrets_may_be_files_with_a_rank_between_the_environment_and_the_file(
    tmp_path: Path, settings_of: SettingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read secrets as from a container's /run/secrets, among files of other programs."""
    files = {"ocs_jobs_db": "postgresql://me:secret@db/x\n", "ocs_port": "5", "keys.toml": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("OCS_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("OCS_PORT", "2")
    settings = settings_of('jobs_db = "none"\nhost = "file"')
    assert revealed(settings.jobs_db) == "postgresql://me:secret@db/x"
    assert (settings.port, settings.host) == (2, "file")
    assert "secret@" not in repr(settings)
    monkeypatch.setenv("OCS_SECRETS_DIR", str(tmp_path / "none"))
    assert "OCS_SECRETS_DIR: the folder" in error_of()


HOSTS = ("http://llm.example", "llm.example:80")


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ("--cache-isolation salt", "--cache-isolation"),
        ("--config /nowhere.toml", "the configuration file /nowhere.toml does not exist"),
        ("--bogus", "^unknown option --bogus .see openai-cpu-server serve --help.$"),
        ("--ctx-sise 4096", "^unknown option --ctx-sise; did you mean --ctx-size[?]$"),
        ("--ctx=4096", "^unknown option --ctx; did you mean --ctx-size[?]$"),
        ("--port 1 smollm2", "^unexpected argument 'smollm2' "),
        (
            "--tensor-parallel-size 2",
            "^--tensor-parallel-size is not an option of this server: one engine uses all cores",
        ),
        ("--rope-scaling yarn", "^--rope-scaling is not an option of this server: leave it out: the model's"),
        ("--kv q8_0", "^unknown option --kv; did you mean --kv-type[?]$"),
        ("--pull 50", "^unknown option --pull [(]see"),
        ("--max_model_len=9", "^--max_model_len is not an option of this server: --max-prompt-tokens"),
        ("-b=512", "^-b is not an option of this server: --prefill-tokens"),
        ("-np 0", "^--max-seqs: "),
        ("--port", "--port: expected one argument"),
        ("--interactive-step-ms 130", "--interactive-step-ms was removed: use --stream-rate and --stall-ms"),
        ("--batch-step-ms=800", "--batch-step-ms was removed: use --batch-stall-ms"),
        ("--no-mixed-steps", "--mixed-steps was removed: use --experiment mixed_steps=off"),
        *((f"--gpu-layers={wrong}", "^--gpu-layers: ") for wrong in ("many", "-1")),
        ("--cpu-moe auto", "^--cpu-moe: "),
        *((f"--tensor-place {wrong}", "^--tensor-place: ") for wrong in ("blk", "blk=", "=CPU", "blk.(=CPU")),
        ("--kv-on-gpu maybe", "^--kv-on-gpu: "),
        ("--trusted-proxy proxy.example", r"^--trusted-proxy: .*'proxy\.example' does not appear"),
        *((f"--allowed-host {wrong}", ": .*without http:// and without a port") for wrong in HOSTS),
    ],
)
def test_wrong_options_are_named_in_one_line(arguments: str, pattern: str) -> None:
    assert re.search(pattern, error_of(*arguments.split()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("port = ", "cannot read "),
        ('host = "a\\u0000b"', "has a null character"),
        ('pin_prompt = ["a\\u0000b"]', "has a null character"),
        ('host = "a\\nb"', "has control characters"),
        (f"x = {'[' * 5000}{']' * 5000}", "cannot read the settings: a value is nested too deeply"),
        (f"tensor_place = ['{'(' * 5000}=CPU']", "cannot read the settings: a value is nested too deeply"),
        ("unknown_option = 1", "unknown option --unknown-option (from "),
        ("ctx_sise = 1", "unknown option --ctx-sise; did you mean --ctx-size? (from "),
        ("parallel = 1", "unknown option --parallel; did you mean --max-seqs? (from "),
        ("max_model_len = 1", "--max-model-len is not an option of this server: --max-prompt-tokens"),
        ("[models.a]\nctxsize = 300", "[models.a] ctxsize: unknown option; did you mean ctx_size? (from "),
        ("[models.device]\nctxsize = 300", "[models.device] ctxsize: unknown option; did you mean ctx_size?"),
        ('[model.a]\nsource = "demo"', "[model]: unknown table; did you mean [models]? (from "),
        ("[server]\nport = 1", "[server]: unknown table (from "),
        ("n_ctx = 1", "unknown option --n-ctx; did you mean --ctx-size? (from "),
        ("[ray]\nreplcas = 2", "[ray] replcas: unknown option; did you mean replicas?"),
        ('[mcp.x]\nurl = "http://x"\nheader = {}', "[mcp.x] header: unknown option; did you mean headers?"),
        ('port = "x"', "--port: "),
        ("batch_step_ms = 800", "--batch-step-ms was removed: use --batch-stall-ms"),
    ],
)
def test_a_wrong_file_is_one_line_too(
    config: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    config.write_text(content)
    assert message in error_of("--config", str(config))
    monkeypatch.setenv("OCS_INTERACTIVE_STEP_MS", "130")
    assert "--interactive-step-ms was removed" in error_of()


@pytest.mark.parametrize(
    "place", ["models_dir = '%s'", "[mcp.x]\ncommand = ['%s']", "[aliases]\n%s = 'demo'"]
)
def test_a_text_that_is_too_long_is_not_repeated(config: Path, place: str) -> None:
    config.write_text(place % ("x" * 70_000))
    assert error_of("--config", str(config)).endswith("has 70000 characters, and may have 65536")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            "-m a.gguf -c 4096 -t 3 -np 2 --jinja -ngl all",
            "--model a.gguf --ctx-size 4096 --threads 3 --max-seqs 2 --gpu-layers all",
        ),
        ("-hf acme/quants:Q8_0 --alias x --embeddings", "--model hf:acme/quants:Q8_0 --served-model-name x"),
        ("--hf-repo=acme/quants -nkvo -ncmoe 4", "--model hf:acme/quants --kv-on-gpu off --cpu-moe 4"),
        ("--max_num_seqs=8 --no-webui -v", "--max-seqs 8 --no-page --log-level debug"),
        ("-n -1 -t -1 -tb=-1", "--max-output-tokens 0"),
        ("--n-predict -2 --reasoning-format deepseek", "--max-output-tokens 0 --reasoning-format auto"),
        ("--generation-config vllm", "--sampling-defaults openai"),
        ("--sampling-defaults vllm", "--sampling-defaults openai"),
    ],
)
def test_equal_options_of_other_servers_are_accepted(theirs: str, ours: str) -> None:
    assert read_settings(theirs.split()) == read_settings(ours.split())


def test_options_of_other_servers_map_to_existing_options_of_other_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        read_settings(["--help"])
    own = set(re.findall(r"(?:^  |, )(--?[a-z][\w-]*)", capsys.readouterr().out, re.MULTILINE))
    peers = peer_options()
    assert {ours.partition("=")[0] for ours in peers.same.values()} - {""} <= own
    advised = {name for advice in peers.instead.values() for name in re.findall(r"--[a-z][\w-]*", advice)}
    assert advised <= own | {"--gpu", "--with"}, "only scripts/serve has other options"
    assert not (peers.same.keys() | peers.instead.keys()) & own
    assert not peers.same.keys() & peers.instead.keys()


def test_variables_of_other_servers_cause_advice() -> None:
    advice = {
        "OLLAMA_HOST": "use --host and --port for a server, --url for a command that asks one",
        "OLLAMA_NEW_ENGINE": "",
        "LLAMA_ARG_CTX_SIZE": "use --ctx-size",
        "LLAMA_ARG_N_GPU_LAYERS": "use --gpu-layers",
        "LLAMA_ARG_N_PARALLEL": "use OCS_MAX_SEQS",
        "LLAMA_ARG_FLASH_ATTN": "flash attention is on, and --no-flash-attention turns it off",
        "LLAMA_ARG_NONSENSE": "",
        "LLAMA_API_KEY": "use OCS_API_KEY",
        "VLLM_API_KEY": "use OCS_API_KEY",
        "VLLM_USE_V1": "",
    }
    silent = ["LLAMA_ARG_JINJA", "PATH", "OCS_PORT"]
    lines = list(peer_variables([*advice, *silent], {"--ctx-size"}))
    assert lines == [
        f"the environment variable {name} has no effect here" + (f": {words}" if words else "")
        for name, words in advice.items()
    ]


@pytest.mark.parametrize("record", [Scheduling, EngineOptions])
def test_engine_options_have_the_defaults_of_the_settings(record: type[msgspec.Struct]) -> None:
    other_types = {"kv_type", "repack", "cache_file"}
    common = Settings.model_fields.keys() & set(record.__struct_fields__) - other_types
    assert common
    defaults = {field.name: field.default for field in msgspec.structs.fields(record)}
    assert {name: Settings.model_fields[name].default for name in common} == {n: defaults[n] for n in common}


def test_options_reach_engines_by_their_names() -> None:
    """Check options of the server, of a model, and of scheduling."""
    options = "--sandbox off --draft-max 7 --batch-stall-ms 650 --policy sjf --repack on --kv-type q8_0"
    engine = read_settings(options.split()).engine_options(Path("m"), cache_bytes=0)
    assert (engine.sandbox, engine.draft_max) == ("off", 7)
    assert (engine.repack, engine.kv_type) == (True, "q8_0")
    assert engine.scheduling == Scheduling(batch_stall_ms=650, policy="sjf")
    assert engine.experiment == AS_SERVED


def test_the_benchmark_sets_an_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read_settings(["--experiment", "mixed_steps=off,always_drafts=on"])
    assert settings.engine_options(Path("m"), cache_bytes=0).experiment == Experiment(
        mixed_steps=False, always_drafts=True
    )
    for wrong in (",", "mixed_steps", "mixed_steps=maybe", "nonsense=on", "mixed_steps=off,"):
        message = error_of("--experiment", wrong)
        assert re.search("--experiment: .*expected on or off for one of tile_filling", message)
    monkeypatch.setenv("OCS_EXPERIMENT", "prefix_sharing=off")
    assert read_settings([]).experiment == Experiment(prefix_sharing=False)


def test_help_shows_types_and_defaults_without_python(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_settings(["--help"])
    shown = capsys.readouterr().out
    for words in ("--api-key KEY", "--port N", "--pin-prompt PATH", "--kv-type {auto,", "(default: on)"):
        assert words in shown
    for words in ("SecretStr", "list[", " str ", " int ", "null", "True", "default: []", "experiment"):
        assert words not in shown


def test_engines_inherit_variables_for_speed_unless_the_user_sets_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "OPENBLAS_NUM_THREADS": "1"}
    own = {"OMP_WAIT_POLICY": "active", "GLIBC_TUNABLES": "x=0", "OPENBLAS_NUM_THREADS": "2"}
    for before, after in (({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7", **fast}), (own, own)):
        monkeypatch.setattr(os, "environ", dict(before))
        tune_engines()
        assert os.environ == after


def test_lists_are_json_in_the_environment_and_lists_in_the_file(
    settings_of: SettingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hold the formats that the manual's page of options describes."""
    monkeypatch.setenv("OCS_CORS_ORIGIN", '["https://a.example", "https://b.example"]')
    settings = settings_of('pin_prompt = ["system.txt"]')
    assert settings.cors_origin == ["https://a.example", "https://b.example"]
    assert settings.pin_prompt == [Path("system.txt")]


def test_proxies_are_addresses_and_hosts_are_names_only() -> None:
    proxies = "--trusted-proxy 127.0.0.1 --trusted-proxy 2001:db8::/32"
    settings = read_settings([*proxies.split(), "--allowed-host", "LLM.Example.", "--allowed-host", "*"])
    assert [str(network) for network in settings.trusted_proxy] == ["127.0.0.1/32", "2001:db8::/32"]
    assert settings.allowed_host == ["llm.example", "*"]
    assert "without http:// and without a port" in error_of("--allowed-host", "a b")


@pytest.mark.parametrize(
    ("arguments", "isolates"),
    [
        ([], False),
        (["--api-key", "k"], True),
        (["--api-keys", "keys.toml"], True),
        (["--api-keys", "keys.toml", "--cache-isolation", "off"], False),
        (["--cache-isolation", "key"], True),
    ],
)
def test_keys_do_not_share_prompts_by_default(arguments: list[str], isolates: bool) -> None:
    assert read_settings(arguments).isolates_by_key is isolates


GUARDS = (
    *("api_key", "api_keys", "limits_url", "ssl_certfile", "ssl_keyfile", "ssl_keyfile_password"),
    "trusted_proxy",
)
EMPTY = ["", " ", "\t", "\n", "\r\n"]


def each_kind_of_empty(names: Sequence[str]) -> list[tuple[str, str]]:
    """Pair each name with one of the empty values."""
    return list(zip(names, itertools.cycle(EMPTY)))


@pytest.mark.parametrize(("guard", "empty"), each_kind_of_empty(GUARDS))
def test_an_empty_guard_is_refused_in_every_source(
    guard: str, empty: str, tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    option, variable = "--" + guard.replace("_", "-"), f"OCS_{guard.upper()}"
    for arguments in (
        [option, empty],
        [f"{option}={empty}"],
        ["--port", "1", option, empty, "--host", "::1"],
    ):
        assert error_of(*arguments).startswith(f"{option} is empty: ")
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    monkeypatch.setenv("OCS_SECRETS_DIR", str(secrets))
    for name in (variable, variable.lower()):
        (secrets / name).write_text(empty)
        assert error_of().startswith(f"{secrets / name} is empty: ")
        (secrets / name).unlink()
        monkeypatch.setenv(name, empty)
        assert error_of().startswith(f"{variable} is empty: ")
        monkeypatch.delenv(name)
    config.write_text(f"{guard} = {json.dumps(empty)}\n")
    assert error_of("--config", str(config)).startswith(f"{guard} in {config} is empty: ")


@pytest.mark.parametrize("empty", EMPTY)
def test_empty_names_of_files_with_guards_are_refused(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse an empty name even if another option sets a guard."""
    assert error_of("--config", empty).startswith("--config is empty: ")
    for name in ("OCS_CONFIG", "OCS_SECRETS_DIR"):
        with monkeypatch.context() as patch:
            patch.setenv(name, empty)
            assert error_of("--api-key", "k").startswith(f"{name} is empty: ")


OTHERS = (
    *("host", "model", "port", "draft_model", "jobs_db", "cors_origin"),
    *("log_level", "adapter", "request_timeout", "page", "kv_type"),
)
"""Options of every type that are not guards."""


def test_other_empty_options_count_as_unset(
    tmp_path: Path, settings_of: SettingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = dict(each_kind_of_empty(OTHERS))
    options = {"--" + name.replace("_", "-"): value for name, value in empty.items()}
    found = [read_settings([]), read_settings([*itertools.chain(*options.items())])]
    found.append(read_settings([f"{option}={value}" for option, value in options.items()]))
    found.append(settings_of("".join(f"{name} = {json.dumps(value)}\n" for name, value in empty.items())))
    for name, value in empty.items():
        (tmp_path / f"ocs_{name}").write_text(value)
    monkeypatch.setenv("OCS_SECRETS_DIR", str(tmp_path))
    found.append(read_settings([]))
    for name, value in empty.items():
        monkeypatch.setenv(f"OCS_{name.upper()}", value)
    found.append(read_settings([]))
    shown = [{name: getattr(settings, name) for name in empty} for settings in found]
    assert shown == shown[:1] * 6


def test_an_empty_value_defers_to_the_next_source(
    settings_of: SettingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, host in (("", "file"), ("environment", "environment")):
        monkeypatch.setenv("OCS_HOST", value)
        assert settings_of('host = "file"', "--host", "").host == host


def test_errors_name_the_source_of_the_value(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('port = "x"\n[models.a]\nctx_size = 1\n')
    both = error_of("--config", str(config)).split("; ")
    assert both[0].startswith("[models.a] ctx_size: must be greater")
    assert both[1].startswith("--port: must be a valid integer")
    assert all(problem.endswith(f" (from {config})") for problem in both)
    (tmp_path / "ocs_port").write_text("y")
    monkeypatch.setenv("OCS_SECRETS_DIR", str(tmp_path))
    assert error_of("--config", str(config)).endswith(f" (from {tmp_path / 'ocs_port'})")
    monkeypatch.setenv("OCS_PORT", "70000")
    assert error_of().startswith("--port: must be less than")
    assert error_of().endswith(" (from OCS_PORT)")
    assert error_of("--port", "z").startswith("--port: must be a valid integer")
    assert "from" not in error_of("--port", "z").replace("from a string", "").replace("from string", "")
    monkeypatch.setenv("OCS_CORS_ORIGIN", "https://a.example")
    assert error_of("--port", "1") == (
        '--cors-origin: expected a list in JSON, such as ["a", "b"] (from OCS_CORS_ORIGIN)'
    )
    config.write_text("port = \n")
    assert error_of("--config", str(config)).startswith(f"cannot read {config}: ")


@pytest.mark.parametrize("link", ["tcp://10.0.0.1:8000", "udp://[fd00::1]:53"])
def test_a_variable_of_kubernetes_causes_an_error_with_a_remedy(
    link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCS_PORT", link)
    monkeypatch.setenv("OCS_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("OCS_PORT_8000_TCP", link)
    message = error_of()
    assert message.startswith("--port: must be a valid integer")
    assert "(from OCS_PORT; Kubernetes sets it where there is a Service named ocs" in message
    assert "enableServiceLinks to false" in message
    assert read_settings(["--port", "1"]).port == 1


def test_bytes_that_are_not_utf8_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = os.fsdecode(b"/models/b\xff.gguf")
    assert error_of(f"--model={bad}") == r"--model '/models/b\udcff.gguf' is not UTF-8"
    monkeypatch.setenv("OCS_CACHE_DIR", bad)
    assert error_of().startswith("OCS_CACHE_DIR '/models/b")


def test_secrets_are_not_shown(config: Path) -> None:
    config.write_text("api_key = 12345678\n")
    assert "12345678" not in error_of("--config", str(config))
    assert "hunter2" not in repr(read_settings(["--api-key", "hunter2"]))


@pytest.mark.parametrize(
    ("arguments", "offload"),
    [
        ((), ON_CPU),
        (("--gpu-layers", "12"), Offload(gpu_layers=12)),
        (("--gpu-layers", "all", "--kv-on-gpu", "off"), Offload(gpu_layers="all", kv_on_gpu=False)),
        (("--cpu-moe", "--port", "81"), Offload(gpu_layers="auto", cpu_moe=ALL_LAYERS)),
        (("--cpu-moe", "4", "--gpu-layers", "0"), Offload(cpu_moe=4)),
        (("--cpu-moe", "0"), ON_CPU),
        (("--kv-on-gpu", "on"), Offload(gpu_layers="auto", kv_on_gpu=True)),
        (("--kv-on-gpu", "off"), Offload(kv_on_gpu=False)),
        (("--device", "GPU1"), Offload(gpu_layers="auto", device="GPU1")),
        (
            ("--tensor-place", "a{1,2}=b=CPU", "--tensor-place", "c=GPU0"),
            Offload(tensor_place=(("a{1,2}=b", "CPU"), ("c", "GPU0"))),
        ),
    ],
)
def test_options_of_offload(arguments: tuple[str, ...], offload: Offload) -> None:
    assert read_settings(arguments).offload == offload


def test_options_of_a_model_precede_those_of_the_server(config: Path) -> None:
    config.write_text(
        'gpu_layers = "all"\ncpu_moe = 3\n[models.a]\ncpu_moe = "all"\ntensor_place = ["b=CPU"]\n'
    )
    settings = read_settings(["--config", str(config)])
    own = settings.models["a"].over(settings).offload
    assert own == Offload(gpu_layers="all", cpu_moe=ALL_LAYERS, tensor_place=(("b", "CPU"),))


def test_a_table_of_an_mcp_server_is_a_program_or_a_url(
    settings_of: SettingsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_MINE", "abc")
    settings = settings_of(
        '[mcp.files]\ncommand = "npx"\nargs = ["-y", "it"]\nenv = {A = "${TOKEN_OF_MINE}"}\ntools = ["x"]\n'
        '[mcp.wiki]\nurl = "https://wiki.example/mcp"\nheaders = {X = "Bearer ${TOKEN_OF_MINE}"}\n',
        *("--mcp-rounds", "3", "--mcp-result-kb", "2"),
    )
    files, wiki = (settings.mcp[name].options for name in ("files", "wiki"))
    assert (files.command, files.env, files.tools) == (("npx", "-y", "it"), {"A": "abc"}, frozenset({"x"}))
    assert (wiki.url, wiki.headers) == ("https://wiki.example/mcp", {"X": "Bearer abc"})
    assert settings.mcp_limits == McpLimits(rounds=3, result_bytes=2048)


def test_draft_gpu_layers_need_a_draft_model() -> None:
    assert read_settings(["--draft-gpu-layers", "all"]).draft_offload == ON_CPU
    assert read_settings(["--draft-model", "own"]).engine_fields["head"] == "own"
    drafted = read_settings(["--draft-gpu-layers", "all", "--draft-model", "demo", "--gpu-layers", "0"])
    assert drafted.engine_fields["head"] == "none"
    assert (drafted.draft_offload.gpu_layers, drafted.offload.wants_device) == ("all", False)
