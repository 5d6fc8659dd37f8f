"""The gateway's metrics for Prometheus.

`route` counts the records of model requests and serves them as ``GET /metrics``, `plugin` registers
it.
"""
