"""The program of the engine process, for any backend.

`python -m openai_cpu_server.engine.process` wires it with `llama`; `loop` takes commands from the API
process, hands them to a core, and sends what comes of each step as one message. A core (`base`) marries a
scheduler and a backend: `generating` or `embedding`. `output` makes events of tokens, `parts` says of which
part of an output they are, `preparation` compiles grammars beside the loop, `turn` shares the cores with
other engines.

It promises: every request that was submitted gets exactly one event that ends it; what goes wrong with one
request fails that one; who is in a step is told before it runs, so that a death accuses only those.
"""
