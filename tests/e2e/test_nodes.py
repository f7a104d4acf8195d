"""The real server with an engine on each of two NUMA nodes. The topology is simulated with this machine's
cores, so memory is bound to neither node."""

from __future__ import annotations

import base64
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from PIL import Image

from openai_cpu_server.llama.host import usable_cpus
from tests.fuzz.pictures import encoded
from tests.server_process import ServerProcess, engines_of
from tests.tiny_model import tiny_model_path, tiny_projector_path
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.native,
    pytest.mark.thorough,
    pytest.mark.skipif(len(usable_cpus()) < 2, reason="one core is one node"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("nodes")
    first, *others = sorted(usable_cpus())
    for node, cpus in enumerate(([first], others)):
        (folder / f"node{node}").mkdir()
        (folder / f"node{node}" / "cpulist").write_text(",".join(map(str, cpus)))
    model, projector = tiny_model_path(sees=True), tiny_projector_path("gemma3", rows_width=256)
    topology = ("--numa", "--numa-folder", str(folder), "--kernels", "invariant")  # for texts after a kill
    with ServerProcess("--model", str(model), "--mmproj", str(projector), *topology) as process:
        wait_until(lambda: {node["state"] for node in nodes(process).values()} == {"ready"})
        wait_until(lambda: process.status()["status"] == "ready")  # nodes report to the server now and then
        yield process


def nodes(server: ServerProcess) -> dict[str, dict[str, object]]:
    (model,) = server.get("/health").json()["models"].values()
    return model["nodes"]


def completion(server: ServerProcess, prompt: str, max_tokens: int) -> dict[str, object]:
    body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    answer = server.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def busy_engines(server: ServerProcess) -> list[psutil.Process]:
    """Return the engines whose node has a running request. The first node has the first CPU."""
    states, first = nodes(server), min(usable_cpus())
    engines = {"01"[first not in engine.cpu_affinity()]: engine for engine in engines_of(server.process.pid)}
    return [engine for name, engine in engines.items() if states[name]["queue"]["interactive"]["running"]]  # type: ignore[index]


def test_the_nodes_serve_one_model_and_are_reported(server: ServerProcess) -> None:
    assert len(server.get("/v1/models").json()["data"]) == 1
    assert nodes(server).keys() == {"0", "1"}
    metrics = server.get("/metrics").text
    assert metrics.count("ocs_node_ready{") == 2
    assert len(engines_of(server.process.pid)) == 2
    assert not set.intersection(*(set(engine.cpu_affinity()) for engine in engines_of(server.process.pid)))


def test_a_prompt_goes_to_the_node_with_its_prefix(server: ServerProcess) -> None:
    prompt = "word " * 200
    completion(server, prompt, 1)
    for _ in range(4):
        usage = completion(server, prompt + "again", 1)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 100  # type: ignore[index]


@pytest.mark.slow
def test_pictures_go_to_the_nodes_and_survive_a_killed_engine(server: ServerProcess) -> None:
    """Some node reports the picture's size to the first request. Requests of a killed engine move."""
    data = base64.b64encode(encoded(Image.effect_noise((90, 60), 90).convert("RGB"))).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "word " * 50}, part]}]

    def ask(_: object = None) -> tuple[str, int]:
        body = {"messages": messages, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        answer = server.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]["prompt_tokens_details"]
        return answer.json()["choices"][0]["message"]["content"], usage["image_tokens"]

    expected = ask()
    assert expected[1] == 16
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(ask) for _ in range(4)]
        wait_until(lambda: busy_engines(server))
        busy_engines(server)[0].send_signal(signal.SIGKILL)
        assert {answer.result() for answer in answers} == {expected}
    wait_until(lambda: {node["state"] for node in nodes(server).values()} == {"ready"})
