"""Checks of model requests over other HTTP libraries than httpx, and over WebSockets.

Add an HTTP library to ``LIBRARIES`` in `_requests`. `_sockets` records connections of `websockets`,
`_integration` installs both, and `plugin` registers them.
"""
