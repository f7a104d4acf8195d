"""`openai-cpu-server tune MODEL`: measures which settings serve a model best on this machine."""
