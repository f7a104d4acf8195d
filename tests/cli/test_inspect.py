"""`openai-cpu-server inspect` on real files, and its figures compared with those of llama.cpp."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest

from openai_cpu_server.cli.inspect.facts import read_facts
from openai_cpu_server.cli.inspect.machine import kv_costs, read_memory
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import model_tensors
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.llama.measure.calibrate import CurveKey, curves
from openai_cpu_server.llama.measure.measurements import Profile, save_profile
from openai_cpu_server.llama.model.kv_size import DeviceMemory, DraftSource, HostMemory, KVType
from tests import warm
from tests.cli.in_process import Run, runner
from tests.llama.driver import SmallMachine, loaded
from tests.llama.odd_models import add_facts, audio_projector, gemma3, rewritten, split, written
from tests.tiny_model import tiny_model_path, tiny_projector_path

pytestmark = [pytest.mark.native, pytest.mark.thorough]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The command in this process, with an empty folder of measurements."""
    monkeypatch.setenv("OCS_CACHE_DIR", str(tmp_path / "cache"))
    return runner("inspect", capsys, monkeypatch)


@pytest.fixture
def text_of(run: Run) -> Callable[..., str]:
    return lambda *arguments: run(*arguments).good.stdout


@pytest.fixture
def facts(run: Run) -> Callable[..., Any]:
    """The report of `--json`."""
    return lambda *arguments: json.loads(run(*arguments, "--json").good.stdout)


TextOf, Facts = Callable[..., str], Callable[..., Any]


# -- the file ------------------------------------------------------------------------------------------


def test_the_demo_model(text_of: TextOf) -> None:
    lines = text_of("demo").splitlines()
    for line in (
        "architecture   llama, 8 layers, width 256, 4 heads, 2 for keys and values",
        "parameters     6.95 M",
        "quantisation   q8_0, 8.51 bits per weight",
        "license        MIT",
        "context        trained for 1,024 tokens; serve grants 1,024 to a request",
        "positions      RoPE, base 10,000, 64 dimensions",
        "tokenizer      BPE (smollm), 4,096 tokens",
        "weights in  tensors     size  share   bits",
        "q8_0             57  7.38 MB  99.8%   8.50",
        "bos       0  <|endoftext|>",
        "eot       2  <|im_end|>",
        "serve takes 16,384 tokens for all requests unless --ctx-size says more",
        "speed: not measured on this machine yet; serve does it while it is idle,",
        "tuned: no; `openai-cpu-server tune demo` finds the best options for this machine",
    ):
        assert line in lines
    (template,) = [line for line in lines if line.startswith("chat template")]
    assert template.endswith(" characters, tool calls as demo (--template prints it)")
    (f16,) = [line for line in lines if line.startswith("f16 (serve)")]
    assert f16.split()[2] == "4,096"
    assert not any("\x1b" in line or line != line.rstrip() for line in lines)


def test_projectors_for_pictures_and_sound(
    tiny: Path, tmp_path: Path, text_of: TextOf, facts: Facts, run: Run
) -> None:
    model, projector = tmp_path / "model.gguf", tmp_path / "mmproj-f16.gguf"
    shutil.copyfile(tiny, model)
    assert facts(model)["sight"] is None
    assert "sees pictures  no; that needs a projector, an mmproj file beside the model's" in text_of(model)
    shutil.copyfile(tiny_projector_path("gemma3", rows_width=256), projector)
    size = projector.stat().st_size
    sight = {"kind": "gemma3", "image_size": 128, "patch_size": 16, "layers": 2}
    assert facts(model)["sight"] == {"path": str(projector), "file_bytes": size, **sight}
    assert f"sees pictures  yes, with {projector}, " in text_of(model)
    assert "gemma3, 128 pixels at once, patches of 16, 2 layers" in text_of(model)
    assert "hears sound    no; that needs a projector" in text_of(model)
    assert facts(model, "--mmproj", "off")["sight"] is None
    shutil.copyfile(tiny_projector_path("ultravox", rows_width=256), projector)
    hearing = {"kind": "ultravox", "sample_rate": 16_000, "bands": 128, "layers": 2, "why_not": None}
    report = facts(model)
    assert report["sight"] is None
    assert report["hearing"] == {"path": str(projector), "file_bytes": projector.stat().st_size, **hearing}
    assert "ultravox, 16,000 samples a second, 128 bands, 2 layers" in text_of(model)
    audio_projector(projector, "ultravox", width=768, stack_factor=8)
    assert f"hears sound    no: any sound crashes llama.cpp with {projector} (of rows 768 wide" in text_of(
        model, "--mmproj", projector
    )
    assert run(model, "--mmproj", tmp_path / "absent.gguf").returncode == 2


def test_the_report_equals_the_engines_figures(tiny: Path, facts: Facts) -> None:
    report = facts(tiny, "--kv-type", "q8_0", "--ctx-size", "2048")
    with loaded(tiny, kv_type="q8_0", kv_tokens=2048) as backend:
        info = backend.info
    model, memory = report["model"], report["memory"]
    (cost,) = [cost for cost in memory["kv_types"] if cost["type"] == memory["kv_type"]]
    weights = model["weights"]
    for reported, expected in (
        ((weights["parameters"], weights["active_parameters"]), (info.num_parameters, info.num_parameters)),
        ((model["file_bytes"], model["architecture"]), (info.file_bytes, info.architecture)),
        (
            (model["shape"]["context_trained"], model["tokenizer"]["size"]),
            (info.context_trained, info.vocab_size),
        ),
        ((memory["pool_tokens"], memory["context"]), (info.kv_tokens, info.context_limit)),
        (cost["bytes_per_token"], info.kv_bytes_per_token),
    ):
        assert reported == expected


@pytest.mark.parametrize("quant", ["f32", "q4_k_m"])
def test_types_add_up(facts: Facts, quant: str) -> None:
    path = tiny_model_path(quant)
    weights, reader = facts(path)["model"]["weights"], gguf.GGUFReader(path)
    assert sum(share["tensors"] for share in weights["types"]) == len(reader.tensors)
    assert sum(share["weights"] for share in weights["types"]) == weights["parameters"]
    assert sum(share["bytes"] for share in weights["types"]) == sum(t.n_bytes for t in reader.tensors)
    assert weights["file_type"] == quant
    assert weights["types"][0]["type"] == ("f32" if quant == "f32" else "q4_K")


TEMPLATE = "tokenizer.chat_template"
CONTENT = "{{ messages[0].content }}"


def moe(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "moe")
    add_facts(writer, {"moe.block_count": 1, "moe.expert_count": 8, "moe.expert_used_count": 2})
    writer.add_tensor("blk.0.ffn_up_exps.weight", np.zeros((8, 100, 100), np.float16))
    writer.add_tensor("token_embd.weight", np.zeros((100, 100), np.float16))
    return written(writer, path)


def adapter(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.zeros((4, 4), np.float32))
    return written(writer, path)


YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 1024}


@pytest.mark.parametrize(
    ("model", "present", "absent"),
    [
        ({TEMPLATE: CONTENT}, "25 characters, tool calls as generic (--template prints it)", "thoughts"),
        ({TEMPLATE: CONTENT}, "no tools, no calls or results, users and answers must take turns", "thoughts"),
        ({TEMPLATE: CONTENT + "{{ tools }}"}, "36 characters, tool calls as generic (", "no tools"),
        ({TEMPLATE: CONTENT + "<think>{# </think> #}"}, "tool calls as generic, thoughts as think (", "\x1b"),
        ({TEMPLATE: "{% if"}, "chat template  cannot be used: the chat template, line 1: ", "tool calls"),
        ({"general.name": "a\x1b[2Jb\nc ü"}, r"name           a\x1b[2Jb\nc ü", "\x1b"),
        (YARN, "RoPE, base 10,000, 64 dimensions, yarn scaling from 1,024 tokens", "\x1b"),
        (lambda path: gemma3(path, window=64), "see the last 64 tokens only", "a state"),
        (lambda path: tiny_model_path(shape="tiny-mamba"), "some or all layers keep a state", "KV cells"),
        (moe, "architecture   moe, 1 layers, 8 experts, 2 at work", "\x1b"),
        (moe, "parameters     90.0 k, of which 30.0 k for a token", "\x1b"),
        (adapter, "content        adapter, not a model", "memory:"),
    ],
)
def test_kinds_of_files(
    tiny: Path, tmp_path: Path, text_of: TextOf, model: Any, present: str, absent: str
) -> None:
    path = tmp_path / "m.gguf"
    text = text_of(rewritten(tiny, path, model) if isinstance(model, dict) else model(path))
    assert present in text
    assert absent not in text


def test_templates_are_printed_whole_and_alone(tiny: Path, tmp_path: Path, text_of: TextOf, run: Run) -> None:
    template = gguf.GGUFReader(tiny).fields[TEMPLATE].contents()
    assert text_of(tiny, "--template") == template + "\n"
    named = rewritten(tiny, tmp_path / "named.gguf", {f"{TEMPLATE}.tool_use": "{{ tools }}"})
    assert text_of(named, "--template", "tool_use") == "{{ tools }}\n"
    assert run(named, "--template", "other").refusal.endswith("named.gguf has no chat template other")
    mute = tmp_path / "mute.gguf"
    mute.write_bytes(tiny.read_bytes().replace(TEMPLATE.encode(), b"tokenizer.chat_temptati"))
    assert "chat template  none: chats need serve --chat-template FILE" in text_of(mute)
    assert run(mute, "--template").refusal


def test_parts(tiny: Path, tmp_path: Path, text_of: TextOf, facts: Facts, run: Run) -> None:
    first, second, third = split(tiny, tmp_path / "m.gguf", tensors_per_part=9)
    assert f"file           {first} and 2 more, " in text_of(first)
    assert facts(first)["model"]["weights"] == facts(tiny)["model"]["weights"]
    assert facts(second)["model"] == facts(first)["model"]
    third.unlink()
    for more in ((), ("--json",)):
        assert "is one of 3 parts; missing beside it: m-00003-of-00003.gguf" in run(first, *more).refusal


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("hf:acme/none", "is not in the cache"),
        ("demon", "unknown model 'demon' (did you mean demo?)"),
        ("demo --model demo", "--model is for serve"),
        ("demo --kv-typ f16", "kv-typ"),
        ("demo --ctx-size 1", "--ctx-size"),
    ],
)
def test_wrong_use(run: Run, arguments: str, line: str) -> None:
    assert line in run(*arguments.split()).refusal
    assert "not allowed with argument --json" in run("demo", "--json", "--template").stderr


def test_options_beside_the_file_count(tiny: Path, text_of: TextOf, facts: Facts) -> None:
    """Inspect with a draft model, a pool that is too large, and a device that llama.cpp lacks here."""
    alone, both = facts(tiny)["memory"], facts(tiny, "--draft-model", tiny)["memory"]
    assert (alone["draft_model"], both["draft_model"]) == (None, str(tiny))
    costs = [[cost["bytes_per_token"] for cost in memory["kv_types"]] for memory in (alone, both)]
    assert costs[1] == [cost + 1024 for cost in costs[0]]
    for arguments, line in (
        (("--draft-model", tiny), "beside the weights of the model and its draft model\n"),
        (("--draft-model", tiny), "serve takes 16,384 tokens for all requests unless --ctx-size says more"),
        (("--ctx-size", 2**31 - 1), "serve would not start: Not enough memory for the KV pool: 2147483647 "),
        (("--gpu-layers", "all"), "\ndevice: llama.cpp finds no device beside the CPU"),
        (
            ("--draft-model", tiny, "--draft-gpu-layers", "all"),
            "\ndevice: llama.cpp finds no device beside the CPU",
        ),
    ):
        assert line in text_of(tiny, *arguments)
    assert "\ndevice" not in text_of(tiny)
    measured = facts(tiny, "--measure")["speed"]
    assert measured["is_default"]
    assert all(each["tokens_per_second"] > 0 for each in measured["decode"])


# -- the machine ---------------------------------------------------------------------------------------


def test_tokens_that_fit_beside_the_weights(tiny: Path, tmp_path: Path) -> None:
    header = GgufHeader(tiny)
    facts, size = read_facts(header, model_tensors(header)), tiny.stat().st_size
    options = EngineOptions(model_path=str(tiny))
    memory = read_memory(header, facts, options, SmallMachine(tmp_path, size + 10_240_000))
    assert (memory.free_bytes, memory.left_bytes) == (size + 10_240_000, 10_240_000)
    f16 = next(cost for cost in memory.kv_types if cost.type == "f16")
    assert (f16.bytes_per_token, f16.tokens) == (1024, 10_000)
    assert [(fit.tokens, fit.sequences) for fit in f16.fits] == [(1024, 9), (4096, 2)]
    assert (memory.pool_tokens, memory.context, memory.problem) == (4864, 4096, None)
    full = read_memory(header, facts, options, SmallMachine(tmp_path, size // 2))
    assert (full.left_bytes, full.pool_tokens, full.context) == (0, None, None)
    assert "Not enough memory for the KV pool" in (full.problem or "")


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("free_bytes", [900_000, 3_000_000, 5_500_000, 12_000_000, 40_000_000])
@pytest.mark.parametrize("kv_tokens", [None, 2048])
def test_serve_takes_the_reported_pool(
    tiny: Path, tmp_path: Path, free_bytes: int, kv_tokens: int | None, draft: bool
) -> None:
    header, weights = GgufHeader(tiny), (2 if draft else 1) * tiny.stat().st_size
    options = EngineOptions(
        model_path=str(tiny), kv_tokens=kv_tokens, draft_model_path=str(tiny) if draft else None
    )
    machine = SmallMachine(tmp_path, weights + free_bytes)
    facts = read_facts(header, model_tensors(header))
    memory = read_memory(header, facts, options, machine, DraftSource(header) if draft else None)
    assert memory.left_bytes == free_bytes
    assert (memory.pool_tokens, memory.problem) == pool_of_engine(options, machine)


def pool_of_engine(options: EngineOptions, machine: Machine) -> tuple[int | None, str | None]:
    """Return the cells of the pool, or the error of the start."""
    try:
        backend = LlamaBackend.load(options, lambda fraction: None, machine)
    except StartupError as error:
        return None, str(error)
    backend.close()
    return backend.info.kv_tokens, None


def test_measured_steps_predict_the_speed(tiny: Path, tmp_path: Path, text_of: TextOf, facts: Facts) -> None:
    """Predict from a curve of 10 ms a step and 1 ms a token, without a cost of attention."""
    curve = CostCurve(step_ms=tuple((n, 10.0 + n) for n in (1, 16, 64, 256)), attended_ms=0.0)
    for kv_type in ("f16", "q8_0"):
        options = EngineOptions(model_path=str(tiny), kv_type=kv_type)
        with closing(LlamaBackend.load(options, lambda fraction: None)) as backend:
            curves(tmp_path / "cache").put(CurveKey.of(backend.info, options), curve)
    speed = facts(tiny)["speed"]
    assert (speed["kv_type"], speed["is_default"], speed["context"]) == ("f16", True, 512)
    assert speed["prompt_tokens_per_second"] == pytest.approx(1000 * 256 / 266)
    assert {each["sequences"]: each["tokens_per_second"] for each in speed["decode"]} == pytest.approx(
        {n: 1000 * n / (10 + n) for n in (1, 2, 4, 8, 16, 32)}
    )
    text = text_of(tiny)
    assert "speed, predicted from steps timed here (" in text
    assert "writing, 16 at once  615.4  tokens/s in all" in text
    assert facts(tiny, "--kv-type", "q8_0")["speed"]["kv_type"] == "q8_0"
    assert "serve would have other options" in text_of(tiny, "--kv-type", "f32")
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny.read_bytes())
    os.utime(other, ns=(1, 1))
    assert facts(other)["speed"] is None


def test_a_tuned_profile_counts(tiny: Path, tmp_path: Path, text_of: TextOf, facts: Facts) -> None:
    profile = Profile(
        threads=1, threads_batch=1, repack=True, prefill_tokens=64, kv_type="bf16", flash_attention=False
    )
    save_profile(tiny, tmp_path / "cache", profile)
    assert "tuned: threads 1, threads_batch 1, repack on, prefill_tokens 64, kv_type bf16" in text_of(tiny)
    report = facts(tiny)
    assert report["profile"] == msgspec.structs.asdict(profile)
    assert report["memory"]["kv_type"] == "bf16"
    assert facts(tiny, "--profile", "off")["profile"] is None
    assert facts(tiny, "--kv-type", "f32")["memory"]["kv_type"] == "f32"


# -- as a process --------------------------------------------------------------------------------------


def test_a_pipe_gets_plain_text_and_may_close(tiny: Path, tmp_path: Path) -> None:
    done = warm.run("inspect", str(tiny))
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    long = rewritten(tiny, tmp_path / "long.gguf", {"tokenizer.chat_template": "x" * 1_000_000})
    # Unbuffered, Python treats a write that the pipe has cut short as complete.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-m", "openai_cpu_server", "inspect", str(long), "--template"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(3) == b"xxx"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("on_the_device", "expected"), [(0, {"f16": 10, "q8_0": 20}), (60, {"f16": 25}), (100, {})]
)
def test_cells_on_a_device_take_no_memory_of_the_machine(
    on_the_device: int, expected: dict[str, int]
) -> None:
    device_memory = DeviceMemory(cell=on_the_device)
    sizes = {KVType.F16: 100, KVType.Q8_0: 50}
    host_memories = {kind: HostMemory(1000, size, 0, device_memory) for kind, size in sizes.items()}
    assert {cost.type: cost.tokens for cost in kv_costs(host_memories, 512, "f16")} == expected
