"""Program of the engine process, for any backend; `process` runs it with llama. `loop` takes commands and
sends the result of each step as one message; a core (`base`) connects scheduler and backend. Every request
gets exactly one event that ends it, and is announced before its step, so that a crash is blamed only on
those."""
