"""Program of the engine process, for any backend; `process` runs it with llama. `loop` takes commands and
sends the result of each step as one message. A core (`base`) connects a scheduler and a backend.

Every submitted request gets exactly one event that ends it. The requests of a step are announced before it
runs, so that a crash is blamed only on those.
"""
