"""Hooks of this package; this module does not import aio-pika."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_observers(register: Register) -> None:
    for scheme, over in (("amqp", "RabbitMQ"), ("amqps", "RabbitMQ over TLS")):
        register(
            f"events.{scheme}",
            "agl_rabbitmq._bus:RabbitBus",
            extra="rabbitmq",
            config="agl_events:BusOptions",
            summary=f"events in a durable topic exchange of {over}, routed and confirmed",
        )
