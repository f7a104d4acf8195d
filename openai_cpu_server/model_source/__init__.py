"""Resolution of `--model` to a local GGUF file. Called by `server` at the start and by commands that inspect
or change models; `AdapterFiles` also while the server runs. Functions raise StartupError: one line that says
what to do. No code of packages is imported, and the hub's library and numpy only where needed."""

from openai_cpu_server.model_source.resolve import AdapterFiles as AdapterFiles
from openai_cpu_server.model_source.resolve import DemoFiles as DemoFiles
from openai_cpu_server.model_source.resolve import FoundModel as FoundModel
from openai_cpu_server.model_source.resolve import drafting_file as drafting_file
from openai_cpu_server.model_source.resolve import hold as hold
from openai_cpu_server.model_source.resolve import hub_name as hub_name
from openai_cpu_server.model_source.resolve import local_model as local_model
from openai_cpu_server.model_source.resolve import model_to_serve as model_to_serve
from openai_cpu_server.model_source.resolve import projector_of as projector_of
from openai_cpu_server.model_source.resolve import resolve_model as resolve_model
