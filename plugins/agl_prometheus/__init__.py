"""The gateway's metrics for Prometheus.

`_route` counts the records of model requests and serves them as ``GET /metrics``, `plugin`
registers it.
"""
