"""Several engines behind one `Engine`, on other machines or on this machine's NUMA nodes, and their number.

`router` and `autoscaling` decide, and are pure: time and chance are arguments. `wire` has the messages of
both sides. `remote` is the API process's side, `host` the replica's; `nodes` has both in one process, for
`--numa`; `ray` runs both with Ray Serve, and is the only room that knows Ray. Promises: a request goes where
its first line is expected soonest; the loss of a replica costs no client its answer.
"""
