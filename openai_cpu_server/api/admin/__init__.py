"""Routes that do not generate: models, adapters, caches, live requests, health, metrics, usage, tokens, the
page. They read what engines report. Only administrators' keys change anything, and polled routes are not
logged."""
