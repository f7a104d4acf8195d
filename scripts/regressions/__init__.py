"""Measurements of features and costs that only this server has.

`scripts/regress.py NAME` runs one. Each is a module: a workload of the benchmark (`workload(bench)`, with its
tables and goals), or one with options of its own (`add_options(parser)`, `run(options)`).
"""

from __future__ import annotations

MEASUREMENTS = {
    "speculation": "drafts on against off, where answers quote and where they do not",
    "schedule": "a step in Python, with 10,000 requests waiting",
    "neighbours": "a model's chats beside batch work of its own, of another, and embedding",
    "wires": "the bytes of some 200 answers of all families of routes, recorded in a file or compared",
    "waits": "one client's small requests beside the heaviest pieces of another, and /health",
    "streams": "what users feel of the scheduler's options and constants, simulated",
    "kernels": "products of weights, ggml's and ours",
    "roofline": "products by AMX, as shares of the peak of its tiles",
    "attention": "attention of a layer, ggml's and ours: wide heads, latent, windows",
    "steps": "whole steps, ggml's and ours, and the machine's floor",
    "page": "the page's bytes, first paint and frames; the manual's pictures of it",
}

COMPUTE_HERE = frozenset({"kernels", "roofline", "attention", "steps"})
"""Computed in this process by our kernels, with allocations in huge pages, as in an engine."""
