"""Cascades of a real server from the demo model's draft model to the demo model.

Other routers: tests/api/test_routers.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.serving import sdk
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.native, pytest.mark.thorough]

ASSETS = Path(__file__).parents[2] / "model_assets"
TOML = f"""
ctx_size = 2048
cache_mb = 8
[models.large]
source = "{ASSETS / "demo.gguf"}"
[models.small]
source = "{ASSETS / "demo-draft.gguf"}"
chat_template = "TEMPLATE"
[models.content]
router = {{ small = "small", large = "large", by = "cascade", cascade = {{ mean_logprob = -100 }} }}
[models.strict]
router = {{ small = "small", large = "large", by = "cascade", cascade = {{ mean_logprob = 0 }} }}
"""
STORY: Any = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 24,
    "temperature": 0,
}


def test_a_cascade_answers_like_the_model_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "template").write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    (tmp_path / "c.toml").write_text(TOML.replace("TEMPLATE", str(tmp_path / "template")))
    with (
        ServerProcess("--config", str(tmp_path / "c.toml")) as server,
        sdk(server, timeout=DEADLINE_S) as client,
    ):
        completions: Any = client.chat.completions
        for router, model in (("content", "small"), ("strict", "large")):
            raw = completions.with_raw_response.create(model=router, **STORY)
            assert raw.headers["x-routed-model"] == model
            assert raw.headers["x-routed-why"].startswith("small: mean_logprob=-")
            text = raw.parse().choices[0].message.content
            assert text == completions.create(model=model, **STORY).choices[0].message.content
            with completions.with_streaming_response.create(model=router, **STORY, stream=True) as streamed:
                chunks = list(streamed.parse())
            assert streamed.headers["x-routed-model"] == model
            assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == text
