"""Program of the engine process, for any backend.

`python -m openai_cpu_server.engine.process` combines it with `llama`. `loop` takes commands from the API
process, compiles grammars beside the steps, passes commands to a core, and sends the result of each step as
one message. A core (`base`) connects a scheduler and a backend: `generating`, which `building` constructs, or
`embedding`. `output` turns tokens into events, `parts` attributes them to parts of an output, `cores` chooses
threads and shares the cores with other engines.

Every submitted request gets exactly one event that ends it. An error of one request fails only that request.
The requests of a step are announced before it runs, so that a crash is blamed only on those.
"""
