"""The API's side of engine replicas: the `Engine` protocol over the ways to them."""
