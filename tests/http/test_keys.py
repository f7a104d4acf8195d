"""The file of keys: its contents, its errors, and reloading."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from openai_cpu_server.contract.replica import key_identity
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import StartupError
from openai_cpu_server.http.keys import (
    ALL_SCOPES,
    Allowance,
    Key,
    KeyRing,
    Scope,
    key_in_headers,
    new_key,
    read_keys,
)
from openai_cpu_server.jobs.records import StorageLimits
from tests.api.keys import sha


def find(ring: KeyRing, key: bytes) -> Key | None:
    return ring.with_digest(hashlib.sha256(key).digest())


def write(folder: Path, text: str) -> Path:
    path = folder / "keys.toml"
    path.write_text(text)
    return path


def test_a_key_with_all_fields(tmp_path: Path) -> None:
    names = "requests_per_minute tokens_per_minute tokens_per_day concurrent batch_tokens_per_day stored_mb"
    amounts = {name: number for number, name in enumerate([*names.split(), "files"], start=1)}
    text = f"""
        [keys.ann]
        sha256 = "{sha("a")}"
        priority = "batch"
        max_priority = "batch"
        models = ["demo"]
        {chr(10).join(f"{name} = {number}" for name, number in amounts.items())}
        [keys."b@c.org"]
        sha256 = "{sha("b").upper()}"
        scopes = ["metrics", "inference"]
        [keys.root]
        sha256 = "{sha("r")}"
        admin = true
    """
    ann, bob, root = (bytes.fromhex(sha(key)) for key in "abr")
    keys = [*read_keys(write(tmp_path, text))]
    assert keys == [
        Key(
            name="ann",
            digest=ann,
            priority=Priority.BATCH,
            max_priority=Priority.BATCH,
            models=frozenset({"demo"}),
            allowance=Allowance(**amounts),
        ),
        Key(name="b@c.org", digest=bob, scopes=frozenset({Scope.METRICS, Scope.INFERENCE})),
        Key(name="root", digest=root, scopes=ALL_SCOPES),
    ]
    assert keys[0].allowance.storage == StorageLimits(max_bytes=6 * 2**20, max_files=7)


A = f'[keys.a]\nsha256 = "{sha("a")}"\n'


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[keys.a", "table declaration"),
        ("", "keys"),
        ("[keys]", "length"),
        ("[keys.a]", "sha256"),
        ('[keys.a]\nsha256 = "abc"', "sha256"),
        (f"{A}concurrent = 0", "concurrent"),
        (f'{A}concurrent = "x"', "concurrent"),
        (f'{A}priority = "high"', "priority"),
        (f'{A}max_priority = "high"', "max_priority"),
        (f'{A}priority = "interactive"\nmax_priority = "batch"', "exceeds its max_priority"),
        (f'{A}scopes = ["all"]', "scopes"),
        (f"{A}models = []", "models"),
        (f'{A}key = "hunter2"', "key"),
        (A.replace("keys.a", 'keys."a b"'), "'a b'"),
        (A + A.replace("keys.a", "keys.b"), "same sha256"),
    ],
)
def test_the_error_of_a_broken_file_is_one_line_without_secrets_and_the_keys_stay(
    tmp_path: Path, text: str, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    ring = KeyRing(None, write(tmp_path, A.replace(sha("a"), sha("old"))))
    with pytest.raises(StartupError) as error:
        read_keys(write(tmp_path, text))
    message = str(error.value)
    assert part in message.replace(str(tmp_path), "")
    assert "\n" not in message
    assert "hunter2" not in message
    ring.reload()
    assert find(ring, b"old") is not None
    (record,) = caplog.records
    assert "the keys are unchanged" in record.getMessage()


def test_reading_again_replaces_the_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StartupError, match="No such file"):
        read_keys(tmp_path / "keys.toml")
    ring, plain = KeyRing("own", write(tmp_path, A.replace(sha("a"), sha("old")))), KeyRing("own")
    write(tmp_path, A.replace(sha("a"), sha("new")))
    assert find(ring, b"old") is not None
    ring.reload()
    plain.reload()
    found = {key: find(ring, key) for key in (b"old", b"new", b"own")}
    assert found[b"old"] is None
    assert found[b"new"] is not None
    assert found[b"new"].name == "a"
    assert found[b"own"] is not None
    assert find(plain, b"own") is not None
    assert (plain.is_open, KeyRing().is_open, caplog.records) == (False, True, [])


def test_a_new_key_is_valid_with_its_lines_in_the_file(tmp_path: Path) -> None:
    key, lines = new_key("ann.b")
    assert key.startswith("sk-ocs-")
    assert len(key) > 40
    assert key not in lines
    assert new_key("ann.b").key != key
    found = find(KeyRing(None, write(tmp_path, lines)), key.encode())
    assert found is not None
    assert found.name == "ann.b"


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "a\nb", "x" * 65])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(StartupError, match="is not a valid key name"):
        new_key(name)


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, None),
        ({"authorization": "Bearer k"}, b"k"),
        ({"authorization": "bearer  k "}, b"k"),
        ({"authorization": "Bearer "}, None),
        ({"authorization": "Bearer ", "x-api-key": "x"}, b"x"),
        ({"authorization": "Bearer", "x-api-key": "x"}, b"x"),
        ({"authorization": "Basic k"}, None),
        ({"x-api-key": "k"}, b"k"),
        ({"x-api-key": ""}, None),
        ({"x-api-key": "x", "authorization": "Bearer k"}, b"k"),
        ({"x-api-key": "x", "authorization": "Basic k"}, b"x"),
    ],
)
def test_a_key_comes_in_either_header(headers: dict[str, str], key: bytes | None) -> None:
    assert key_in_headers(headers) == key


def test_different_keys_have_different_identities() -> None:
    assert key_identity(None) is None
    assert key_identity(b"a") == sha("a") != key_identity(b"b")
