"""Routes that do not generate: models, adapters, caches, live requests, health, metrics, usage, tokens,
the page. They read what engines report, and only administrators' keys change anything. Polled routes are
not logged."""
