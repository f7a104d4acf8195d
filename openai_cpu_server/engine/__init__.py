"""The program of the engine process: `process` wires it, `loop` runs it, `core` decides and tells."""
