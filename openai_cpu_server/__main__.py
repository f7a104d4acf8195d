"""`python -m openai_cpu_server` is the command `openai-cpu-server`."""

from openai_cpu_server.cli.main import main

main()
