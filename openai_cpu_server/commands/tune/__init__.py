"""`openai-cpu-server tune MODEL`: measures which settings serve a model best on this machine."""

from openai_cpu_server.commands.tune.command import tune

__all__ = ["tune"]
