"""Generated pages, also in the repository so that links work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from manual.errors import error_table
from manual.files import file_table
from manual.ignored_params import ignored_table, refused_table
from manual.metrics import metric_table
from manual.options import alias_table, model_table, option_tables, ray_table
from manual.routes import route_tables

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
_MADE = "<!-- Made from the code by scripts/docs: do not edit. -->"

_INDEX = """\
openai-cpu-server serves GGUF models on CPUs behind the OpenAI API. It is made for machines that many users
and background jobs share. A single continuous-batching scheduler feeds every route: interactive requests go
before batch work, a shared prompt is computed once, JSON always obeys its schema, and a crash of native
code is a pause in the stream, not an error.

![Batch jobs run; two people ask something and go first](images/priority.svg)
"""

_OPTIONS = """\
These are the options of `openai-cpu-server serve`, and so of `scripts/serve`. `--help` prints the same texts.

Each option is also an environment variable (`OCS_CTX_SIZE=8192`) and a key of the TOML file that `--config`
names (`ctx_size = 8192`). So is a file in the folder of `OCS_SECRETS_DIR`, named like the variable
(`ocs_jobs_db`). Precedence, highest first: the command line, the environment, that folder, the TOML file.
Outside of the command line, an option that may be given several times is a list:
`OCS_CORS_ORIGIN='["https://a.example"]'`,
`cors_origin = ["https://a.example"]`.

An empty value counts as not set: with `OCS_HOST=` the server listens on this machine only. The exceptions are
a key, a file of keys, the TOML file, the folder of secrets, a certificate, a proxy and `--limits-url`. If one
of these is empty, the start ends with one line, because a server without it would be less safe than intended.
"""
_ROUTES = """\
These are the routes, the scope that a key needs for each, and the fields of each body. [The API](api.md)
explains them, and [Errors](errors.md) the statuses. A running server has the same description at
`GET /openapi.json` (OpenAPI 3.1), with all schemas.
"""
_FIELDS = """\
Clients send fields that this server does not support. A field that does not change the answer is ignored, and
the response header `x-ignored-parameters` names it, unless its value has no effect anyway. Unknown fields in
messages, their parts, tools, tool calls and documents (`messages[].cache_control`) are ignored too, because
clients store notes there.

A field that would change the answer is refused with 400 and its name, unless its value has no effect. Other
unknown fields of a body are refused too, except with `--lenient`. `null` means that a field is not set.
"""
_ERRORS = """\
An error is OpenAI's object: `{"error": {"message", "type", "param", "code"}}`. In a stream that has begun, it
is the last event. If a field of the body is wrong, `param` names it. On the paths of
[Anthropic's API](anthropic.md#errors), errors have Anthropic's format, and on those of
[Ollama's](ollama.md#errors) they are `{"error": "..."}`. On the paths of
[llama-server's own API](llama-server.md#errors), `code` is the status.
"""
_METRICS = """\
`GET /metrics` returns these metrics in Prometheus' text format. [Monitoring](monitoring.md) describes their
use, and `deploy/chart/files/dashboard.json` is a dashboard for all of them. The metrics `ocs_process_...`
exist
on Linux only.
"""
_FILES = """\
These are the kinds of files that requests may have. The server detects them by their content, whatever their
names and media types say. [Pictures and files](pictures.md) describes how to send them, and their limits.

[Extras](start.md#extras) are parts of the package: `scripts/serve --with documents,sound,heic`, or
`pip install 'openai-cpu-server[documents,sound,heic]'`. Readers decode all files within limits of memory and
CPU time. Encrypted files, archives that unpack to more than 128 MiB of XML, and XML that declares entities
are refused. Macros are not read. The text of a document names its parts that are not shown, such as pictures,
and a damaged page does not stop the others.
"""


def pages() -> Mapping[str, str]:
    return {
        "index.md": _page("openai-cpu-server", _INDEX, _guide()),
        "options.md": _page(
            "Options", _OPTIONS, option_tables() + model_table() + ray_table() + alias_table()
        ),
        "routes.md": _page("Routes", _ROUTES, route_tables()),
        "fields.md": _page("Ignored and refused fields", _FIELDS, ignored_table() + refused_table()),
        "errors.md": _page("Errors", _ERRORS, error_table()),
        "metrics.md": _page("Metrics", _METRICS, metric_table()),
        "files.md": _page("Files", _FILES, file_table()),
    }


def _guide() -> str:
    """Return the README's table of what to read, with links from this folder."""
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    return readme.partition("## Read on\n\n")[2].partition("\n\n")[0].replace("](docs/", "](")


def _page(title: str, introduction: str, body: str) -> str:
    return f"{_MADE}\n\n# {title}\n\n{introduction}\n{body.rstrip()}\n"
