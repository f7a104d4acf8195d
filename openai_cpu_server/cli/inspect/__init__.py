"""`openai-cpu-server inspect MODEL`: says what a model file holds and how it would run here.

`command` reads the file's header and its template without loading the model; with `--measure` it loads it and
times its steps. What it predicts is what `serve` would do with the same options on this machine.
"""
