"""API replicas and engine replicas as deployments of Ray Serve. No other room imports Ray.

`cli/ray` calls `application` to run or print it; Serve's controller calls `scaling` and the request router.
Ray pickles `scaling` and `request_router` by value, so they must import what they need of ours. Promise: Ray
reports where replicas are and how many; tokens and orders never go through its calls.
"""
