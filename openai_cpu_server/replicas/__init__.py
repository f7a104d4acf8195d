"""Several engines as one, elsewhere or on this machine's NUMA nodes, and how many there should be.

`router` and `autoscaling` choose, and are pure: time and chance are arguments. `wire` is what both sides say.
`remote` is the API process's side, an `Engine` over replicas; `host` is a replica's; `nodes` has both in one
process, for `--numa`; `ray` makes both with Ray Serve, and is the only room that knows Ray. Promises: a
request goes where its first line is expected soonest; a replica that is lost costs nobody an answer.
"""
