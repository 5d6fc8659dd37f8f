from typing import ClassVar

from agl_testing.optimizer_contract import OptimizerContract


class TestBootstrap(OptimizerContract):
    """A demonstration contains words of a good answer, which the world's model then uses too."""

    factory = "agl_bootstrap._bootstrap:bootstrap"
    model = "agl_bootstrap._options:BootstrapOptions"
    options: ClassVar = {"threshold": 0.1, "max_demos": 8, "sets": 12, "confidence": 0.9}
    rollouts = 300
    edits = False
    world: ClassVar = {"train": 24, "val": 16}
    """Demonstrations show only words that some attempt has used."""
