"""Splits of a model between a device and the CPU: the largest that fits, and the fastest as measured."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import gguf
import msgspec
import numpy as np
import pytest
from random_model import gguf_file
from random_model.architectures import SHAPES
from random_model.gguf_file import wanted_tensors
from random_model.tensors import Quant
from random_model.vocabulary import build_vocabulary

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.offload import ALL_LAYERS, Device, Offload
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.measure.measurements import Profile
from openai_cpu_server.llama.measure.splits import SplitKey, SplitRace, fastest
from openai_cpu_server.llama.model.kv_size import DeviceMemory, KVType
from openai_cpu_server.llama.offload.split import (
    DeviceBytes,
    ModelSizes,
    Split,
    SplitKind,
    SplitPlanner,
    StepSizes,
    margin_bytes,
)
from tests.llama.driver import native_lines
from tests.tiny_model import tiny_model_path

MIB, GIB = 2**20, 2**30
STEP = StepSizes(
    cells=16_384, tokens=256, outputs=128, sequences=66, states=66, flash_attention=True
)  # of a server with the default options


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models of these shapes, where the data of all tensors is a hole in the file."""
    folder, paths = tmp_path_factory.mktemp("shapes"), {}
    for name in ("1b", "qwen3-moe", "qwen3.5"):
        shape, path = SHAPES[name], folder / f"{name}.gguf"
        vocabulary = build_vocabulary(shape.vocab, fim=False)
        writer = gguf.GGUFWriter(path, shape.llama_name)
        gguf_file.add_facts(writer, shape.facts)
        gguf_file.add_tokenizer(writer, vocabulary)
        tensors = wanted_tensors(shape, Quant.Q4_K_M, vocabulary.quiet)
        for tensor in tensors:
            size, kind = tensor.num_bytes, np.dtype("f4")
            writer.add_tensor_info(tensor.name, tensor.shape, kind, size, raw_dtype=tensor.type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        os.truncate(path, path.stat().st_size + sum(tensor.num_bytes + 32 for tensor in tensors))
        paths[name] = path
    return paths


def device(free_mib: int) -> Device:
    size = free_mib * MIB
    return Device(
        name="GPU0", backend="Some", description="a device", kind="gpu", free_bytes=size, total_bytes=size
    )


def planner(
    path: Path, free_mib: int, offload: Offload, step: StepSizes = STEP, reserved: int = 0
) -> SplitPlanner:
    sizes = ModelSizes.of(GgufHeader(path), KVType.F16, offload, "GPU0")
    return SplitPlanner(sizes, step, offload, device(free_mib), reserved_bytes=reserved)


def split(path: Path, free_mib: int, offload: Offload, step: StepSizes = STEP) -> Split:
    return planner(path, free_mib, offload, step).first_choice()


AUTO, ALL = Offload(gpu_layers="auto"), Offload(gpu_layers="all")
CELLS_ON_CPU = Offload(gpu_layers="auto", kv_on_gpu=False)
SOME_EXPERTS, NO_EXPERTS = Offload(gpu_layers="all", cpu_moe=4), Offload(gpu_layers="all", cpu_moe=ALL_LAYERS)
WHY = (
    "17 of 17 layers would take 1.14 GiB (weights 609 MiB, cells 512 MiB, compute 43 MiB), and GPU0 has "
    "{} free, of which 256 MiB stay so"
)
SIZE_UNKNOWN = "GPU0 does not report how much memory it has"


@pytest.mark.parametrize(
    ("name", "free_mib", "offload", "text", "weights", "cells", "why"),
    [
        # The embeddings stay on the CPU, and a copy of them on the device is the output.
        ("1b", 4096, ALL, "17 of 17 layers", 609, 512, None),
        ("1b", 1024, ALL, "10 of 17 layers", 367, 288, WHY.format("1.00 GiB")),
        ("1b", 1024, AUTO, "10 of 17 layers", 367, 288, None),
        ("1b", 1024, Offload(gpu_layers=10), "10 of 17 layers", 367, 288, None),
        ("1b", 4096, Offload(gpu_layers=5), "5 of 17 layers", 195, 128, None),
        ("1b", 4096, Offload(gpu_layers=99), "17 of 17 layers", 609, 512, None),
        ("1b", 4096, Offload(gpu_layers=1), "1 of 17 layers", 51, 0, None),  # the output
        ("1b", 200, ALL, "the CPU alone", 0, 0, WHY.format("200 MiB")),
        ("1b", 1024, CELLS_ON_CPU, "17 of 17 layers, cells on the CPU", 609, 0, None),
        ("1b", 0, AUTO, "the CPU alone", 0, 0, None),
        ("1b", 0, ALL, "the CPU alone", 0, 0, SIZE_UNKNOWN),
        ("1b", 0, Offload(gpu_layers=4), "4 of 17 layers", 162, 96, None),
        ("qwen3-moe", 1536, AUTO, "17 of 17 layers, experts of 5 layers on the CPU", 711, 512, None),
        # Whole layers stay on the CPU too if their dense weights do not fit.
        ("qwen3-moe", 700, AUTO, "11 of 17 layers, experts of 10 layers on the CPU", 57, 320, None),
        ("qwen3-moe", 8192, SOME_EXPERTS, "17 of 17 layers, experts of 4 layers on the CPU", 773, 512, None),
        ("qwen3-moe", 8192, NO_EXPERTS, "17 of 17 layers, experts of 16 layers on the CPU", 76, 512, None),
    ],
)
def test_the_first_choice_of_a_split(
    files: dict[str, Path],
    name: str,
    free_mib: int,
    offload: Offload,
    text: str,
    weights: int,
    cells: int,
    why: str | None,
) -> None:
    found = split(files[name], free_mib, offload)
    taken = (round(found.device_bytes.weights / MIB), found.device_bytes.cells / MIB)
    assert (str(found), taken, found.why) == (text, (weights, cells), why)
    assert found.is_cpu_alone == (sum(found.device_bytes) == 0)
    assert found.offload.cpu_moe >= found.experts_on_cpu
    if free_mib and sum(found.device_bytes):
        assert sum(found.device_bytes) + margin_bytes(device(free_mib)) <= free_mib * MIB


def test_overrides_name_the_experts_of_those_layers_alone(files: dict[str, Path]) -> None:
    offload = Offload(gpu_layers="all", cpu_moe=2, tensor_place=((r"blk\.15\.attn", "CPU"),))
    first, (experts, where) = split(files["qwen3-moe"], 8192, offload).overrides
    assert first == (r"blk\.15\.attn", "CPU")
    assert where == "CPU"
    assert re.search(experts, "blk.1.ffn_gate_exps.weight")
    assert not re.search(experts, "blk.11.ffn_gate_exps.weight")
    assert not re.search(experts, "blk.1.ffn_gate_shexp.weight")


def test_patterns_place_tensors_wherever_layers_are(files: dict[str, Path]) -> None:
    offload = Offload(gpu_layers=0, tensor_place=((r"blk\.[0-3]\.attn_q\.", "GPU0"), (r"attn", "CPU")))
    found = split(files["1b"], 4096, offload)
    assert not found.is_cpu_alone
    assert found.device_bytes.weights == 4 * 2048 * 2048 * 144 // 256
    off = split(files["1b"], 4096, msgspec.structs.replace(ALL, tensor_place=((r"ffn", "CPU"),)))
    assert off.device_bytes.weights < split(files["1b"], 4096, ALL).device_bytes.weights / 2


def test_tensors_that_patterns_place_on_other_devices_are_counted(files: dict[str, Path]) -> None:
    two = Offload(gpu_layers=0, tensor_place=((r"blk\.0\.attn_q\.", "GPU1"), (r"blk\.1\.", "CPU")))
    found = split(files["1b"], 4096, two)
    assert (sum(found.device_bytes), found.other_devices_bytes, found.is_cpu_alone) == (
        0,
        2048 * 2048 * 144 // 256,
        False,
    )


def test_an_output_that_a_pattern_has_placed_is_not_the_embeddings(files: dict[str, Path]) -> None:
    offload = Offload(gpu_layers=1, tensor_place=((r"^output\.weight", "CPU"),))
    assert split(files["qwen3-moe"], 4096, offload).device_bytes.weights < MIB


def test_options_that_the_model_cannot_use_are_reported(files: dict[str, Path]) -> None:
    places = ((r"attn", "CPU"), (r"blk\.0\.attn_q\.", "GPU0"), (r"ffn_upp", "GPU0"))
    offload = Offload(gpu_layers=4, cpu_moe=ALL_LAYERS, tensor_place=places)
    assert planner(files["1b"], 4096, offload).unused_options == [
        r"--tensor-place: 'blk\\.0\\.attn_q\\.' matches no tensor",
        "--tensor-place: 'ffn_upp' matches no tensor",
        "--cpu-moe: the model has no experts",
    ]
    assert planner(files["qwen3-moe"], 4096, msgspec.structs.replace(ALL, cpu_moe=2)).unused_options == []


def test_the_reason_for_the_cpu_alone(files: dict[str, Path]) -> None:
    placed = Offload(tensor_place=(("no such", "GPU0"),))
    assert placed.wants_device
    assert not Offload(tensor_place=(("blk", "cpu"),)).wants_device
    for offload, free_mib, why in (
        (placed, 4096, "no tensor of it is placed on GPU0"),
        (AUTO, 200, "nothing of it fits on GPU0"),
        (AUTO, 0, "GPU0 does not report how much memory it has"),
    ):
        found = planner(files["1b"], free_mib, offload)
        assert (found.first_choice().is_cpu_alone, found.why_cpu_alone) == (True, why)


def test_a_pattern_that_is_not_a_regular_expression_is_refused(files: dict[str, Path]) -> None:
    with pytest.raises(StartupError, match=r"--tensor-place: 'blk\.\(' is not a regular expression"):
        split(files["1b"], 4096, Offload(gpu_layers=1, tensor_place=(("blk.(", "CPU"),)))


def test_reserved_memory_leaves_room_for_fewer_layers(files: dict[str, Path]) -> None:
    assert planner(files["1b"], 1024, AUTO, reserved=300 * MIB).first_choice().gpu_layers < 10


def test_candidates_are_few_and_the_first_choice_is_the_first(files: dict[str, Path]) -> None:
    dense = planner(files["1b"], 1024, AUTO).candidates()
    assert [*dense] == [SplitKind.FULL, SplitKind.NO_CELLS, SplitKind.CPU]
    assert str(dense[SplitKind.NO_CELLS]) == "17 of 17 layers, cells on the CPU"
    mixed = planner(files["qwen3-moe"], 1536, AUTO).candidates()
    assert [*mixed] == [*SplitKind]
    assert str(mixed[SplitKind.DENSE]) == "17 of 17 layers, experts of 16 layers on the CPU"
    assert [*planner(files["1b"], 200, AUTO).candidates()] == [SplitKind.FULL]


def test_default_options_give_the_steps_of_these_tests(files: dict[str, Path]) -> None:
    sizes = ModelSizes.of(GgufHeader(files["1b"]), KVType.F16, ALL, "GPU0")
    assert StepSizes.of(sizes, EngineOptions(model_path=""), 16_384, 8 * GIB, drafts=False) == STEP._replace(
        tokens=512, states=0
    )


class _Reserved(NamedTuple):
    compute: float
    states: float


def _reserved(path: Path, step: StepSizes) -> _Reserved:
    """Return the MiB that llama.cpp reserves according to its log. It allocates those of states only."""
    with native_lines() as lines:
        params = llama_cpp.llama_model_default_params()
        params.no_alloc, params.load_mode = True, llama_cpp.LLAMA_LOAD_MODE_NONE
        model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        context = llama_cpp.llama_context_default_params()
        context.kv_unified = context.swa_full = True
        context.offload_kqv = context.op_offload = False
        context.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        context.n_ctx, context.n_seq_max = step.cells, step.sequences
        context.n_batch = context.n_ubatch = step.tokens
        context.embeddings, context.pooling_type = step.pools, llama_cpp.LLAMA_POOLING_TYPE_LAST
        if not step.pools:
            context.n_outputs_max = context.n_outputs_max_per_seq = step.outputs
        llama_cpp.llama_free(llama_cpp.llama_init_from_model(model, context))
        llama_cpp.llama_model_free(model)
    sizes_mib = dict(re.findall(r"(compute|RS) buffer size = +([\d.]+) MiB", "".join(lines)))
    return _Reserved(float(sizes_mib["compute"]), float(sizes_mib.get("RS", 0)))


@pytest.mark.parametrize("name", ["1b", "qwen3-moe", "qwen3.5"])
def test_planned_memory_is_what_llama_cpp_reserves(files: dict[str, Path], name: str) -> None:
    """A build without a device reserves as much for the graph as a device with all layers."""
    step = STEP._replace(sequences=8, states=8)
    expected, found = _reserved(files[name], step), split(files[name], 16_384, ALL, step).device_bytes
    assert expected.compute * MIB <= found.compute <= 1.2 * expected.compute * MIB
    assert found.states == pytest.approx(expected.states * MIB, abs=0.01 * MIB)


def test_a_step_that_embeds_reserves_as_llama_cpp_does(files: dict[str, Path], minilm: Path) -> None:
    """A causal model has cells for one step and logits of all tokens. An encoder has neither."""
    for path, kv_tokens, cells, largest_ratio in (
        (files["1b"], 256, 256, 1.1),
        (files["1b"], 4_096, 4_096, 1.1),
        (minilm, None, 0, 2.5),
    ):
        header, options = GgufHeader(path), EngineOptions(model_path="", kv_tokens=kv_tokens)
        sizes = ModelSizes.of(header, KVType.F16, ALL, "GPU0")
        step = StepSizes.of_embeddings(header, sizes, options, 8 * GIB)
        found = SplitPlanner(sizes, step, ALL, device(16_384)).first_choice()
        expected = _reserved(path, step).compute * MIB
        assert expected <= found.device_bytes.compute <= largest_ratio * expected
        assert found.device_bytes.cells == cells * 16 * 8 * 64 * 2 * 2


GPU = device(1024)


def some_split(layers: int, *, experts: int = 0, kv_on_gpu: bool = True) -> Split:
    return Split(
        offload=Offload(gpu_layers=layers, cpu_moe=experts, kv_on_gpu=kv_on_gpu),
        num_layers=33,
        experts_on_cpu=experts,
        device_bytes=DeviceBytes(layers, 0, 0, 0),
        cells=256,
        device_memory=DeviceMemory(),
    )


CANDIDATES = {
    SplitKind.FULL: some_split(33, experts=20),
    SplitKind.DENSE: some_split(33, experts=32),
    SplitKind.CPU: some_split(0),
}


@pytest.fixture
def key() -> SplitKey:
    options = EngineOptions(model_path=str(tiny_model_path()), offload=Offload(gpu_layers="auto"))
    return SplitKey.of(options, GPU)


def race(key: SplitKey, folder: Path, candidates: dict[SplitKind, Split] = CANDIDATES) -> SplitRace:
    return SplitRace(candidates, key, folder)


def costing(**ms: float) -> tuple[Callable[[Split], float], list[str]]:
    order: list[str] = []

    def cost(split: Split) -> float:
        name = "cpu" if split.is_cpu_alone else {20: "full", 32: "dense"}[split.experts_on_cpu]
        order.append(name)
        if name not in ms:
            raise StartupError("no memory")
        return ms[name]

    return cost, order


@pytest.mark.parametrize(
    ("ms", "kind", "why_cpu"),
    [
        ({"full": 100, "dense": 98, "cpu": 300}, SplitKind.FULL, None),  # a little faster is noise
        ({"full": 100, "dense": 80, "cpu": 300}, SplitKind.DENSE, None),
        (
            {"full": 100, "dense": 80, "cpu": 70},
            SplitKind.CPU,
            "it is faster than with Some GPU0 a device, as measured",
        ),
        ({"cpu": 70}, SplitKind.CPU, "no split with Some GPU0 a device could be used when that was tried"),
    ],
)
def test_the_best_split_and_the_reason_for_the_cpu_alone(
    tmp_path: Path, key: SplitKey, ms: dict[str, float], kind: SplitKind, why_cpu: str | None
) -> None:
    assert race(key, tmp_path).best() is CANDIDATES[SplitKind.FULL]
    one, (cost, order) = race(key, tmp_path), costing(**ms)
    for _ in range(2):
        one.run(cost)
        assert one.is_run
        assert one.best() is CANDIDATES[kind]
        assert why_cpu is None or one.why_cpu_alone() == why_cpu
        one = race(key, tmp_path)
    assert order == ["full", "dense", "cpu"] or len(ms) < 3, "each candidate is measured once"


def test_a_split_that_does_not_load_is_tried_again_at_the_next_start(tmp_path: Path, key: SplitKey) -> None:
    one = race(key, tmp_path)
    one.run(costing(dense=80, cpu=70)[0])
    assert one.is_run
    assert one.best() is CANDIDATES[SplitKind.CPU]
    second, (cost, order) = race(key, tmp_path), costing(dense=80, cpu=70)
    assert not second.is_run
    second.run(cost)
    assert order == ["full"]
    assert race(key, tmp_path).is_run


def test_a_model_that_does_not_fit_is_reported_without_measuring(tmp_path: Path, key: SplitKey) -> None:
    offload, full = Offload(gpu_layers="auto"), msgspec.structs.replace(GPU, free_bytes=0)
    header, options = GgufHeader(tiny_model_path()), EngineOptions(model_path="")
    sizes = ModelSizes.of(header, KVType.F16, offload, GPU.name)
    planner = SplitPlanner(sizes, StepSizes.of(sizes, options, 256, 2**30, drafts=False), offload, full)
    found = fastest(race(key, tmp_path, planner.candidates()), planner)
    assert found == Offload(why_cpu_alone="nothing of it fits on GPU0")


def test_a_race_without_a_time_limit_measures_all_candidates(tmp_path: Path, key: SplitKey) -> None:
    hasty, patient = race(key, tmp_path / "hasty"), race(key, tmp_path / "patient")
    cost, order = costing(full=100, dense=80, cpu=70)
    hasty.run(cost, budget_s=0)
    assert order == ["full", "cpu"]
    patient.run(cost, budget_s=math.inf)
    assert order[2:] == ["full", "dense", "cpu"]


def test_times_are_stored_for_the_tuned_settings_too(tmp_path: Path, key: SplitKey) -> None:
    tuned = Profile(
        threads=3, threads_batch=4, repack=True, prefill_tokens=64, kv_type="q8_0", flash_attention=True
    )
    one = race(key, tmp_path)
    one.run(costing(full=100, dense=80, cpu=300)[0])
    options = EngineOptions(model_path=str(tiny_model_path()), offload=Offload(gpu_layers="auto"))
    served = SplitKey.of(tuned.applied(options), GPU)
    assert race(served, tmp_path).times == {}
    one.keep_for(tuned)
    assert race(served, tmp_path).best() is CANDIDATES[SplitKind.DENSE]
    pictures = msgspec.structs.replace(options, projector_path="a", draft_model_path="b")
    assert SplitKey.of(pictures, GPU) == key, (
        "a projector or draft model is planned at each start, and does not change the key"
    )


def test_a_split_that_ends_the_process_twice_is_skipped(tmp_path: Path, key: SplitKey) -> None:
    def crash(split: Split) -> float:
        raise SystemExit

    for _ in range(2):
        assert not race(key, tmp_path).is_run
        with pytest.raises(SystemExit):
            race(key, tmp_path).run(crash)
    cost, order = costing(full=1, dense=80, cpu=300)
    third = race(key, tmp_path)
    third.run(cost)
    assert order == ["dense", "cpu"]
    assert third.best() is CANDIDATES[SplitKind.DENSE]


def test_nothing_is_measured_where_times_cannot_be_stored(tmp_path: Path, key: SplitKey) -> None:
    (tmp_path / "file").write_text("")
    cost, order = costing(full=100, dense=80, cpu=300)
    one = race(key, tmp_path / "file")
    one.run(cost)
    assert order == []
    assert one.best() is CANDIDATES[SplitKind.FULL]


def test_another_split_device_or_option_has_times_of_its_own(tmp_path: Path, key: SplitKey) -> None:
    race(key, tmp_path).run(costing(full=100, dense=80, cpu=300)[0])
    for full in (some_split(12, experts=20), some_split(33, experts=31)):  # far fewer layers, or experts
        times = race(key, tmp_path, CANDIDATES | {SplitKind.FULL: full}).times
        assert times.keys() == {SplitKind.DENSE, SplitKind.CPU}
    changes = ({"device": "other"}, {"driver": "new"}, {"offload": Offload(gpu_layers=1)}, {"threads": 99})
    for change in changes:
        assert race(msgspec.structs.replace(key, **change), tmp_path).times == {}
