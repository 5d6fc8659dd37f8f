"""The gateway: an OpenAI-compatible proxy that records exactly which tokens were sampled.

Reading order: `app` (the server), `endpoints` (what it answers), `routing` (who calls, which policy
serves), `proxy` and `exchange` (one call), `dialects`, `responses` and `stream` (what is on the
wire), `capture` and `recording` (what is kept), `traces` and `rewards` (what agents say of
themselves), `counting` (how long a prompt would be), `replay` (answers from the record), `probe`
(what a backend can give); `control`, `remote` and `backend_server` (a gateway in another process).
"""

from agl_core.gateway.app import GatewayOptions, GatewayServer
from agl_core.serving import HttpBackend

__all__ = ["GatewayOptions", "GatewayServer", "HttpBackend"]
