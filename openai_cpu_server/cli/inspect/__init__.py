"""`openai-cpu-server inspect MODEL`: reports what a model file contains and how it would run here.

`command` reads the file's header and template; with `--measure` it loads the model and times its steps.
Predictions are those of `serve` with the same options on this machine.
"""
