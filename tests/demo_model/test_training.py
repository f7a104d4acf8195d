"""The corpus on disk, its batches, the loss and the run: a small model on a small corpus."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from demo_model import checkpoint  # noqa: E402
from demo_model.batches import Batches, batch_of  # noqa: E402
from demo_model.corpus.example import Split  # noqa: E402
from demo_model.documents import read_documents, write_documents  # noqa: E402
from demo_model.loss import weighted_loss  # noqa: E402
from demo_model.model import Llama  # noqa: E402
from demo_model.optimise import share_of_rate  # noqa: E402
from demo_model.rows import Row, Rows, chained, encoded, write_rows  # noqa: E402
from demo_model.shapes import SHAPES  # noqa: E402
from demo_model.tokenizer import load_tokenizer, train_tokenizer  # noqa: E402
from demo_model.training import Budget, Plan, train  # noqa: E402

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
NUM_PIECES, LONGEST = 1024, 512


def ignore(done: int, total: int) -> None:
    """No one watches."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What prepare.py makes, smaller."""
    folder = tmp_path_factory.mktemp("data")
    for split, count in ((Split.TRAIN, 1500), (Split.HELD_OUT, 200)):
        write_documents(folder / f"{split.value}.jsonl", split, count, seed=7, jobs=1, told=ignore)
    texts = [document.text for document in read_documents(folder / "train.jsonl")]
    train_tokenizer(texts, NUM_PIECES).save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    for split in Split:
        documents = read_documents(folder / f"{split.value}.jsonl")
        write_rows(folder / split.value, encoded(documents, tokenizer, LONGEST, seed=7))
    return folder


@pytest.fixture
def plan(data: Path, tmp_path: Path) -> Plan:
    return Plan(
        shape=replace(SHAPES["tiny"], vocab=NUM_PIECES),
        data=data,
        output=tmp_path / "run",
        budget=Budget(tokens=20_000),
        step_tokens=2048,
        batch_tokens=1024,
        threads=1,
        low=False,
    )


@pytest.fixture(scope="module")
def rows(data: Path) -> Rows:
    return Rows.open(data / "train")


def test_the_corpus_has_the_same_bytes_from_any_number_of_processes(tmp_path: Path) -> None:
    paths = [tmp_path / f"{jobs}.jsonl" for jobs in (1, 2, 3)]
    for jobs, path in enumerate(paths, start=1):
        write_documents(path, Split.TRAIN, 1201, seed=3, jobs=jobs, told=ignore)
    first, *others = [path.read_bytes() for path in paths]
    assert first.count(b"\n") == 1201
    assert [other == first for other in others] == [True, True]


def test_another_seed_makes_another_corpus(tmp_path: Path) -> None:
    texts = []
    for seed in (1, 2):
        write_documents(tmp_path / "c", Split.TRAIN, 20, seed=seed, jobs=1, told=ignore)
        texts.append((tmp_path / "c").read_text())
    assert texts[0] != texts[1]


def test_rows_hold_the_documents(data: Path, rows: Rows) -> None:
    tokenizer = load_tokenizer(data / "tokenizer.json")
    documents = [d for d in read_documents(data / "train.jsonl", 50) if not d.is_plain]
    found = {
        tokenizer.decode(rows.tokens[start:end].tolist(), skip_special_tokens=False)
        for start, end in zip(rows.starts[:200], rows.starts[1:201], strict=True)
    }
    assert {document.text for document in documents if len(document.text) < 900} <= found


def test_learnt_tokens_are_what_the_assistant_says(data: Path, rows: Rows) -> None:
    tokenizer = load_tokenizer(data / "tokenizer.json")
    document = next(d for d in read_documents(data / "train.jsonl") if not d.is_plain)
    row = next(iter(encoded([document], tokenizer, LONGEST, seed=1)))
    learnt = [token for token, learn in zip(row.tokens, row.learn, strict=True) if learn]
    said = "".join(segment.text for segment in document.segments if segment.learn)
    assert tokenizer.decode(learnt, skip_special_tokens=False) == said


def some_rows(count: int) -> Iterable[Row]:
    for index in range(count):
        yield Row("chat", [index] * 10, [True] * 10, can_follow=index % 3 > 0)


def test_chains_keep_every_document_and_the_limit() -> None:
    joined = list(chained(some_rows(3000), longest=64, seed=2))
    assert sum(len(row.tokens) for row in joined) == 30_000
    chains = [row for row in joined if row.kind == "chain"]
    assert len(chains) > 20
    assert max(len(row.tokens) for row in chains) <= 64
    # Only what brings no system turn of its own stands behind another.
    assert all(token % 3 > 0 for row in chains for token in row.tokens[10:])


def test_an_epoch_shows_every_row_once(rows: Rows) -> None:
    batches = Batches(rows, tokens=1024, seed=1, prompt_weight=0.1)
    shown, position = 0, 0
    total = int((rows.lengths - 1).sum())
    while shown < total:
        batch = batches[position]
        assert batch.inputs.numel() <= 1024 or len(batch.inputs) == 1
        shown, position = shown + batch.num_tokens, position + 1
    assert shown == total


def test_batches_follow_from_seed_and_position(rows: Rows) -> None:
    one, same, other = (Batches(rows, tokens=1024, seed=seed, prompt_weight=0.1) for seed in (1, 1, 2))
    for position in (0, 7, 900):
        assert torch.equal(one[position].inputs, same[position].inputs)
    assert not torch.equal(one[7].inputs, other[7].inputs)


def test_targets_follow_inputs_and_padding_weighs_nothing(rows: Rows) -> None:
    batch = batch_of(rows, np.asarray([3, 4]), prompt_weight=0.1)
    length = int(rows.lengths[3]) - 1
    assert batch.inputs[0, 1:length].tolist() == batch.targets[0, : length - 1].tolist()
    assert (batch.weights[0, length:] < 0).all()
    assert set(batch.weights[0, :length].tolist()) <= {1.0, float(np.float32(0.1))}


def test_the_loss_and_its_gradients_are_those_of_cross_entropy() -> None:
    torch.manual_seed(1)
    hidden, table = torch.randn(700, 32, requires_grad=True), torch.randn(90, 32, requires_grad=True)
    targets, weights = torch.randint(0, 90, (700,)), torch.rand(700) - 0.2
    each = torch.nn.functional.cross_entropy(hidden @ table.T, targets, reduction="none")
    expected = (each * weights.clamp(min=0)).sum()
    wanted = torch.autograd.grad(expected, (hidden, table))
    ours = weighted_loss(hidden, table, targets, weights, low=False)
    found = torch.autograd.grad(ours, (hidden, table))
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(found, wanted)


def test_a_token_does_not_see_those_after_it() -> None:
    torch.manual_seed(2)
    model = Llama(SHAPES["tiny"])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    tokens = torch.randint(0, 4096, (1, 20))
    changed = tokens.clone()
    changed[0, 12:] += 1
    with torch.inference_mode():
        before, after = model(tokens), model(changed % 4096)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert not torch.allclose(before[:, 12:], after[:, 12:])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda shape: shape.name)
def test_shapes_suit_q8_0_and_count_their_parameters(shape: object) -> None:
    model = Llama(shape)
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.num_parameters  # type: ignore[attr-defined]
    assert {parameter.shape[-1] % 32 for parameter in model.parameters() if parameter.ndim == 2} == {0}
    assert shape.head_width % 32 == 0  # type: ignore[attr-defined]


def test_the_rate_rises_stays_and_falls_to_nothing() -> None:
    rates = [share_of_rate(progress / 100) for progress in range(101)]
    assert rates[0] < 0.1
    assert rates[5:65] == [1.0] * 60
    assert rates[70:] == sorted(rates[70:], reverse=True)
    assert rates[100] == 0.0


def test_a_run_that_is_cut_goes_on_as_if_it_had_not_been(plan: Plan, tmp_path: Path) -> None:
    whole = train(plan)
    cut = replace(plan, output=tmp_path / "cut")
    part = train(replace(cut, budget=Cut(tokens=20_000, stop=9_000)))
    resumed = train(cut)
    assert 9_000 <= part.tokens < 15_000
    assert (resumed.step, resumed.batch, resumed.tokens) == (whole.step, whole.batch, whole.tokens)
    models = [checkpoint.load_model(folder) for folder in (plan.output, cut.output)]
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


class Cut(Budget):
    """The run's schedule is unchanged, its end is not."""

    def __init__(self, *, tokens: int, stop: int) -> None:
        super().__init__(tokens=tokens)
        object.__setattr__(self, "stop", stop)

    def spent(self, position: checkpoint.Position) -> float:
        return 1.0 if position.tokens >= self.stop else super().spent(position)  # type: ignore[attr-defined]


def test_a_run_writes_its_logs(plan: Plan) -> None:
    position = train(replace(plan, budget=Budget(tokens=45_000)))
    steps = [json.loads(line) for line in (plan.output / "steps.jsonl").read_text().splitlines()]
    trials = [json.loads(line) for line in (plan.output / "trials.jsonl").read_text().splitlines()]
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert steps[0]["tokens"] < steps[-1]["tokens"] <= position.tokens
    assert trials[-1]["losses"]["recall"] < 6.5 < float(np.log(NUM_PIECES))


def test_another_shapes_checkpoint_is_refused(plan: Plan) -> None:
    train(replace(plan, budget=Budget(tokens=1_000)))
    with pytest.raises(ValueError, match="another model"):
        train(replace(plan, shape=replace(plan.shape, layers=1)))


@pytest.mark.thorough
def test_the_command_saves_on_sigterm_and_goes_on(data: Path, tmp_path: Path) -> None:
    command = command_line(data, tmp_path, "--minutes", "10")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "step 10 " not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "the same command goes on" in rest
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["position"]
    assert saved["step"] >= 10
    tokens = str(saved["tokens"] + 5_000)
    subprocess.run(command_line(data, tmp_path, "--tokens", tokens), check=True, timeout=60)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["position"]["step"] > saved["step"]


def command_line(data: Path, output: Path, *length: str) -> list[str]:
    small = ["--model", "tiny", "--threads", "1", "--step-tokens", "1024", "--batch-tokens", "512"]
    train_py = str(SCRIPTS / "demo_model" / "train.py")
    return [sys.executable, train_py, *small, "--data", str(data), "--output", str(output), *length]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_minutes_of_training_bring_the_loss_down(tmp_path: Path) -> None:
    scripts = SCRIPTS / "demo_model"
    data, run = tmp_path / "data", tmp_path / "run"
    prepare = [sys.executable, str(scripts / "prepare.py"), "--documents", "20000", "--output", str(data)]
    subprocess.run(prepare, check=True)
    began_s = time.monotonic()
    command = [sys.executable, str(scripts / "train.py"), "--model", "demo", "--data", str(data)]
    subprocess.run([*command, "--minutes", "5", "--trials-every", "1", "--output", str(run)], check=True)
    assert time.monotonic() - began_s > 240
    losses = [json.loads(line)["losses"]["all"] for line in (run / "trials.jsonl").read_text().splitlines()]
    assert len(losses) >= 4
    assert losses[-1] < losses[0] * 0.75
