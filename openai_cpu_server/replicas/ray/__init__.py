"""Ray Serve: API replicas and engine replicas as deployments. Nobody else knows Ray.

`cli/ray` calls `application` to run or print it; Serve's controller calls `scaling` and the request router.
Ray pickles `scaling` and `request_router` by value: what they need of ours they import. Promise: Ray says
where replicas are and how many; tokens and orders never go through its calls.
"""
