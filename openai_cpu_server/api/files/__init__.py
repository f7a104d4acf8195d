"""OpenAI's batch API: files, jobs of many requests, and how a row of one is run.

`api/application.py` names its routes; a server without jobs has none of them. `jobs/` calls `rows` for each
row of a batch. Promises: objects belong to a key by its name; a row goes the very way that a request goes, at
batch priority, and counts against the limit of rows alone.
"""
