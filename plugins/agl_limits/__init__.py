"""Rate limits: for functions, for ASGI applications, for requests to other servers.

The package ``limits`` counts, in memory or in Redis. `Limiter` adds what both have in common here:
one verdict, and counting in memory while Redis does not answer.
"""

from agl_limits._decorator import rate_limited
from agl_limits._limiter import Limiter, RateLimitError, RateVerdict, parse_rate
from agl_limits._middleware import RateLimitMiddleware, limit_headers

__all__ = [
    "Limiter",
    "RateLimitError",
    "RateLimitMiddleware",
    "RateVerdict",
    "limit_headers",
    "parse_rate",
    "rate_limited",
]
