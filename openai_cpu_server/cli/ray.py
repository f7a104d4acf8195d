"""`openai-cpu-server ray`: serves with replicas on Ray Serve."""

from __future__ import annotations

from collections.abc import Sequence

from openai_cpu_server.cli.plain_text import show
from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.errors import MissingExtra

try:
    from openai_cpu_server.replicas.ray.application import print_config, run
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise MissingExtra("Ray is not installed", "ray") from None

_HELP = """usage: openai-cpu-server ray [CONFIG.toml] [--print-config] [options of serve]

Serve with API replicas and engine replicas, as an application of Ray Serve: in the cluster that [ray] of the
TOML file names, else in a new one on this machine. Options are those of serve; [ray] says how many replicas
there are, and what each of them gets.

  --print-config  print the file for `serve run` and `serve deploy`, and end"""


def ray(arguments: Sequence[str]) -> None:
    options = list(arguments)
    if {"-h", "--help"} & set(options):
        show(_HELP)
        return
    prints = "--print-config" in options
    options = [argument for argument in options if argument != "--print-config"]
    if options and not options[0].startswith("-"):
        options[0] = f"--config={options[0]}"
    settings = read_settings(options)
    if prints:
        show(print_config(settings, settings.config))
        return
    run(settings)
