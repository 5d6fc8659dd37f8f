"""RabbitMQ as an event bus.

`_bus` publishes to a durable topic exchange and reads from queues, `plugin` registers it.
"""
