"""Several engines behind one `Engine`, on other machines or on this machine's NUMA nodes, and their number.
`router` and `autoscaling` decide, and are pure; `wire` has the messages between `remote`, the API process's
side, and `host`, the replica's. `nodes` has both in one process; `ray` runs both with Ray Serve. The loss of
a replica costs no client its answer."""
