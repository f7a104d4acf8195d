"""Deploy the application again in the running Ray cluster. Arguments: options of `serve`."""

import sys

import ray
from ray import serve

from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.replicas.ray.application import portable, serve_application

if __name__ == "__main__":
    ray.init(address="auto", log_to_driver=False)
    settings = portable(read_settings(sys.argv[1:]))
    serve.run(serve_application(settings), name=settings.ray.name, route_prefix="/")
