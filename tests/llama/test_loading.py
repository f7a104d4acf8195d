"""Loading of models: sizes, memory, reported facts, and errors of one line."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.contract.step import Open, Span, Step
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.embedder import LlamaEmbedder
from openai_cpu_server.llama.gguf.header import GgufHeader, description
from openai_cpu_server.llama.model.kv_size import KVType, bytes_per_cell
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from tests.llama import driver
from tests.llama.driver import GREEDY, SmallMachine, generate, native_lines
from tests.llama.odd_models import as_architecture, header_only, rewritten
from tests.tiny_model import tiny_model_path

PROMPT = tuple(range(300, 340))
small_options = functools.partial(driver.small_options, max_seqs=4, prefill_tokens=64)
loaded = functools.partial(driver.loaded, max_seqs=4, prefill_tokens=64)
Failure = Callable[..., str]


@pytest.fixture
def failure(capfd: pytest.CaptureFixture[str]) -> Failure:
    def failure(path: Path, **changes: object) -> str:
        with pytest.raises(StartupError) as raised, loaded(path, **changes):
            pass
        assert capfd.readouterr() == ("", "")
        (line,) = str(raised.value).splitlines()
        return line

    return failure


def test_facts(tiny: Path) -> None:
    progress: list[float] = []
    backend = LlamaBackend.load(small_options(tiny), progress.append)
    info = backend.info
    backend.close()
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    assert (info.path, info.architecture, info.file_bytes) == (str(tiny), "llama", tiny.stat().st_size)
    assert (info.kv_tokens, info.kv_type, info.max_seqs, info.context_trained) == (512, "f16", 4, 4096)
    assert (info.max_step_tokens, info.max_step_outputs) == (64, 68)
    assert (info.vocab_size, info.end_tokens) == (1024, frozenset({2, 260}))
    assert (info.state_bytes, info.max_draft) == (0, None)
    assert (info.num_parameters > 1_000_000, info.description) == (True, "llama 1.71M f32")
    assert info.threads >= 1


def test_sizes_are_those_that_llama_cpp_has_rounded(tiny: Path) -> None:
    with loaded(tiny, kv_tokens=300, prefill_tokens=50) as backend:
        assert (backend.info.kv_tokens, backend.info.max_step_tokens) == (512, 64)
    with loaded(tiny, kv_tokens=256, prefill_tokens=1000) as backend:
        assert backend.info.max_step_tokens == backend.info.kv_tokens == 256


def is_mapped(model: Path) -> bool:
    return str(model) in Path("/proc/self/maps").read_text()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not list mapped files")
def test_weights_that_are_read_are_not_mapped_and_compute_the_same(tiny: Path, tmp_path: Path) -> None:
    own = tmp_path / tiny.name  # a copy, because other tests may have mapped the original
    shutil.copy(tiny, own)
    with loaded(own, reads_weights=False) as backend:
        expected = generate(backend, PROMPT, 8)
        assert is_mapped(own)
    with loaded(own, reads_weights=True) as backend:
        assert not is_mapped(own)
        assert generate(backend, PROMPT, 8) == expected


@pytest.mark.parametrize("shape", ["tiny", "tiny-gemma3", "tiny-mamba"])
@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "q8_0"])
def test_cells_cost_what_llama_cpp_reports(kv_type: str, shape: str) -> None:
    with native_lines() as lines, loaded(tiny_model_path(shape=shape), kv_type=kv_type) as backend:
        info = backend.info
    reported = re.findall(r"KV buffer size = +([\d.]+) MiB", "".join(lines))
    ours = info.kv_tokens * info.kv_bytes_per_token / 2**20
    assert ours == pytest.approx(sum(map(float, reported)), abs=0.012)
    assert (info.state_bytes > 0, info.max_draft) == ((True, 0) if "mamba" in shape else (False, None))


def test_no_memory_for_the_states(tmp_path: Path, failure: Failure) -> None:
    path = tiny_model_path(shape="tiny-mamba")
    with loaded(path) as backend:
        state = backend.info.state_bytes
    machine = SmallMachine(tmp_path, path.stat().st_size + 30 * state)
    with loaded(path, machine, max_seqs=20, kv_tokens=256) as backend:
        assert len(backend._loaded.sequences.rollback_slots) == 30 // 8
    line = failure(path, machine=machine, max_seqs=40, kv_tokens=256)
    assert line.startswith("Not enough memory for the states of sequences: they need ")


def test_the_default_pool_is_half_of_the_free_memory(tiny: Path, tmp_path: Path) -> None:
    cell, size = bytes_per_cell(GgufHeader(tiny), KVType.F16), tiny.stat().st_size
    for repack in (True, False):
        machine = SmallMachine(tmp_path, size + 2 * 1100 * cell)
        with loaded(tiny, machine, kv_tokens=None, repack=repack) as backend:
            assert backend.info.kv_tokens == 1024
    with loaded(tiny, SmallMachine(tmp_path, size + 2 * 10**6 * cell), kv_tokens=None) as backend:
        assert backend.info.kv_tokens == 16_384


def test_the_pool_leaves_room_for_a_draft_model(tiny: Path, tmp_path: Path, failure: Failure) -> None:
    cell, weights = bytes_per_cell(GgufHeader(tiny), KVType.F16), 2 * tiny.stat().st_size
    machine = SmallMachine(tmp_path, weights + 2 * 1100 * 2 * cell)
    with loaded(tiny, machine, kv_tokens=None, draft_model_path=str(tiny)) as backend:
        assert (backend.info.kv_tokens, backend.info.kv_bytes_per_token) == (1024, cell)
    machine = SmallMachine(tmp_path, weights + 1000 * cell)
    line = failure(tiny, machine=machine, kv_tokens=512, draft_model_path=str(tiny))
    assert line.startswith(f"Not enough memory for the KV pool: 512 tokens at {2 * cell} bytes")


@pytest.mark.parametrize(("kv_tokens", "free_tokens"), [(None, 500), (2048, 2047), (10**9, 10**6)])
def test_not_enough_memory(
    tiny: Path, tmp_path: Path, failure: Failure, kv_tokens: int | None, free_tokens: int
) -> None:
    cell = bytes_per_cell(GgufHeader(tiny), KVType.F16)
    machine = SmallMachine(tmp_path, tiny.stat().st_size + free_tokens * cell)
    line = failure(tiny, machine=machine, kv_tokens=kv_tokens)
    assert line.startswith(f"Not enough memory for the KV pool: {kv_tokens or 256} tokens at {cell} bytes")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (lambda tiny: None, "The model file PATH does not exist."),
        *(
            (lambda tiny, data=data: data, "PATH is not a GGUF file.")
            for data in (b"", b"GG", b"<html>not found</html>", b"PK\x03\x04")
        ),
        *(
            (lambda tiny, size=size: tiny[:size], "PATH is truncated or damaged: ")
            for size in (4, 8, 24, 100, 5_000, 20_000, 1_000_000, -1)
        ),
        (lambda tiny: tiny[:4] + (77).to_bytes(4, "little") + tiny[8:], "PATH is a GGUF file of version 77"),
    ],
)
def test_files_that_are_not_models_are_refused(
    tiny: Path, tmp_path: Path, failure: Failure, content: Callable[[bytes], bytes | None], line: str
) -> None:
    path = tmp_path / "file.gguf"
    if (data := content(tiny.read_bytes())) is not None:
        path.write_bytes(data)
    assert failure(path).startswith(line.replace("PATH", str(path)))
    assert failure(tmp_path) == f"{tmp_path} is a directory, not a GGUF file."


HEADS = {
    "llama.attention.head_count": 16,
    "llama.attention.head_count_kv": 8,
    "llama.rope.dimension_count": 16,
}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"general.architecture": "tomorrow"}, r"Cannot load PATH: unknown model architecture: 'tomorrow'\."),
        ({"llama.rope.dimension_count": 32}, ".*invalid n_rot: 32, expected 64.*"),
        ({"llama.attention.causal": False}, r"PATH \(llama\) is not a model that generates text\."),
        ({"tokenizer.ggml.model": "no_vocab"}, r"PATH has no tokenizer\."),
        (HEADS, ".*q8_0 with block size 32 does not divide.*"),
    ],
)
def test_strange_metadata(
    tiny: Path, tmp_path: Path, failure: Failure, changes: dict[str, object], line: str
) -> None:
    path = rewritten(tiny, tmp_path / "odd.gguf", changes)
    assert re.fullmatch(line, failure(path, kv_type="q8_0").replace(str(path), "PATH"))
    if "tokenizer.ggml.model" in changes:
        with pytest.raises(StartupError, match="has no tokenizer"):
            Vocabulary.open(path)


@pytest.mark.parametrize("causal", [None, False])
@pytest.mark.parametrize("architecture", ["dream", "llada", "llada-moe", "rnd1"])
def test_a_diffusion_model_is_refused_before_its_weights_are_read(
    tiny: Path, tmp_path: Path, failure: Failure, architecture: str, causal: bool | None
) -> None:
    more = {f"{architecture}.attention.causal": causal}
    path = as_architecture(tiny, tmp_path / "diffuse.gguf", architecture, **more)
    line = (
        f"{path} ({architecture}) is a diffusion model: it writes all tokens of an answer at once and "
        "improves them in rounds, where this server computes one token after the other."
    )
    with pytest.raises(StartupError, match=re.escape(line)):
        Vocabulary.open(path)
    if architecture == "llada":  # the others need tensors that the file lacks
        assert failure(path) == line
        with pytest.raises(StartupError, match=re.escape(line)):
            LlamaEmbedder.load_cold(small_options(path), lambda fraction: None)


def test_a_model_with_unspecified_pooling_generates(tiny: Path, tmp_path: Path) -> None:
    path = rewritten(tiny, tmp_path / "saved.gguf", {"llama.pooling_type": 2**32 - 1})
    with loaded(tiny) as plain, loaded(path) as saved:
        assert saved.info.kind is ModelKind.GENERATES
        assert generate(saved, PROMPT, 4) == generate(plain, PROMPT, 4)


@pytest.mark.parametrize(
    ("parameters", "size"),
    [(7_000, "0.007M"), (999_400_000, "999M"), (999_600_000, "1B"), (7.24e9, "7.24B"), (1.2e12, "1.2T")],
)
def test_sizes_in_descriptions(tmp_path: Path, parameters: float, size: str) -> None:
    header = GgufHeader(header_only(tmp_path / "m.gguf", "some", {}))
    assert description(header, int(parameters)) == f"some {size}"


def test_missing_parts(tiny: Path, tmp_path: Path, failure: Failure) -> None:
    split = {"split.count": 3, "split.no": 0}
    first = rewritten(tiny, tmp_path / "m-00001-of-00003.gguf", split)
    assert failure(first).endswith("missing beside it: m-00002-of-00003.gguf, m-00003-of-00003.gguf.")
    second = rewritten(tiny, tmp_path / "m-00002-of-00003.gguf", {**split, "split.no": 1})
    rewritten(tiny, tmp_path / "m-00003-of-00003.gguf", {**split, "split.no": 2})
    assert failure(second) == f"{second} is part 2 of 3; name the first, {first}."
    renamed = second.rename(tmp_path / "renamed.gguf")
    assert "its name must end in -00002-of-00003.gguf" in failure(renamed)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"kv_type": "q2_k"}, "Unknown KV type 'q2_k'; the types are f32, f16, bf16, q8_0."),
        ({"max_seqs": 255}, "--max-seqs must be between 1 and 254 for this model, not 255."),
        ({"max_seqs": 0}, "--max-seqs must be between 1 and 254 for this model, not 0."),
        ({"threads": 0}, "--threads must be at least 1, not 0."),
        ({"kv_tokens": 0}, "A KV pool of 0 tokens is too small."),
        ({"prefill_tokens": 0}, "A step must be allowed at least 1 token."),
    ],
)
def test_wrong_options(tiny: Path, failure: Failure, changes: dict[str, object], line: str) -> None:
    assert failure(tiny, **changes) == line


def test_a_failing_progress_callback_ends_the_load(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(fraction: float) -> None:
        raise BrokenPipeError("the pipe is closed")

    with pytest.raises(BrokenPipeError, match="the pipe is closed"):
        LlamaBackend.load(small_options(tiny), fail)
    assert capfd.readouterr() == ("", "")


def test_the_largest_number_of_slots(tiny: Path) -> None:
    with loaded(tiny, max_seqs=254, kv_tokens=1024) as backend:
        verbs = tuple(Open(slot, GREEDY, PROMPT) for slot in range(254))
        backend.execute(Step(verbs=verbs))
        spans = tuple(Span(slot, 0, (slot + 300,), True) for slot in range(0, 254, 4))
        assert len(backend.execute(Step(spans=spans)).samples) == 64
