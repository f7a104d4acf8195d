"""`openai-cpu-server tune MODEL`: finds the best settings for a model on this machine.

`command` measures each setting in its own process (`trial`), one factor at a time, within its budget. The
best becomes `serve`'s profile, which is written after all measurements.
"""
