"""`openai-cpu-server tune MODEL`: finds the best settings for a model on this machine by measurement.

`command` measures each setting in a process of its own (`trial`), one factor at a time, until its budget is
spent. The best becomes the profile for `serve`; nothing is written before all is measured.
"""
