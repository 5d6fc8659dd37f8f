"""Redis and what speaks its protocol as an event bus.

`_bus` keeps the events of each channel in a stream, `plugin` registers it.
"""
