"""OpenAI's fields that this server does not honour yet. To build one, delete its line here.

The values listed beside a name are accepted, for they ask for nothing that would be missing.
"""

from __future__ import annotations

import json

from openai_cpu_server.errors import InvalidRequest

NOT_YET: dict[str, tuple[object, ...]] = {
    # structured output
    "guided_whitespace_pattern": (),
    "guided_decoding_backend": (),
    # other media
    "modalities": (["text"],),
    "audio": (),
    # hints and services of OpenAI's own
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "moderation": (),
    "web_search_options": (),
    "store": (False,),
}


def refuse_unsupported(fields: dict[str, object]) -> dict[str, object]:
    """The fields that remain unknown. Raises InvalidRequest for a known one that is not done."""
    for name, value in fields.items():
        if name in NOT_YET and not any(type(no) is type(value) and no == value for no in NOT_YET[name]):
            raise _not_supported(name)
    return {name: value for name, value in fields.items() if name not in NOT_YET}


def _not_supported(name: str) -> InvalidRequest:
    accepted = " or ".join(json.dumps(value) for value in NOT_YET[name])
    but = f" (accepted is only {accepted})" if accepted else ""
    return InvalidRequest(
        f"'{name}' is not supported by this server{but}.", param=name, code="unsupported_parameter"
    )
