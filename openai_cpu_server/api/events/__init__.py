"""`GET /v1/events`: what the scheduler does, live, for the page's control room and for whoever else listens.

`api/application.py` names its route. One `hub` hears the engines as long as anybody listens; each listener
has a `view` by its key, and a `stream`. Promises: nobody is told of another's request but as a count; a
listener that reads slowly misses steps and holds nobody up; the keys are looked at again every second.
"""
