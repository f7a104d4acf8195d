"""`openai-cpu-server tune MODEL`: finds the best settings for a model on this machine by measurement.

`command` measures each setting in a process of its own (`trial`), one factor at a time, until its budget is
spent, and stores the best as the profile for `serve`. It writes nothing before all is measured.
"""
