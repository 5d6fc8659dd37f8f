"""A local plugin file: two displays, which write what they are called with."""

from contextlib import contextmanager

from agl_core.plugins import hookimpl


@hookimpl
def agl_register_displays(register):
    for name in ("first", "second"):
        register(name, f"tests.core.app.display_plugin:{name}")


class Lines:
    def __init__(self, stream, name):
        self._stream, self._name = stream, name

    def say(self, what):
        self._stream.write(f"{self._name} {what}\n")

    def started(self, config):
        self.say(f"started {config.name}")

    def step(self, report):
        self.say(f"step {report.step}")

    def evaluation(self, evaluation):
        self.say(f"evaluation {evaluation.step}")

    def finished(self, report):
        self.say(f"finished {report.run_id}")


@contextmanager
def first(stream):
    display = Lines(stream, "first")
    display.say("entered")
    yield display
    display.say("left")


@contextmanager
def second(stream):
    yield Lines(stream, "second")
