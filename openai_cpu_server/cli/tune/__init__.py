"""`openai-cpu-server tune MODEL`: measures which settings serve a model best on this machine.

`command` measures each setting in a process of its own (`trial`), one factor at a time, until its time is
spent, and keeps the best as the profile that `serve` uses. It writes nothing before all is measured.
"""
