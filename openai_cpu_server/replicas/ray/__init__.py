"""API replicas and engine replicas as deployments of Ray Serve. No other room imports Ray. Ray pickles
`scaling` and `request_router` by value, so they must import what they need of ours. Tokens and orders never
go through Ray's calls."""
