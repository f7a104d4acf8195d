"""Ray Serve: API replicas and engine replicas as deployments. Nobody else knows Ray."""
