"""Metrics, logs, traces and the statistics of the last minutes.

`Watch` is told of every request when it has ended (`ended`), and of every step; it tells all the others.
Routes read them when they are asked for `/metrics` or `/v1/stats`; gauges are read from the engines at that
moment.

It promises to cost some microseconds for a request or a step, to hold a bounded amount, and that nothing
which goes wrong here fails a request. Only this room knows Prometheus and OpenTelemetry.
"""
