from typing import ClassVar

from agl_testing.optimizer_contract import OptimizerContract


class TestApo(OptimizerContract):
    factory = "agl_apo._apo:apo"
    model = "agl_apo._options:ApoOptions"
    options: ClassVar = {
        "gradient_batch": 2,
        "val_batch": 8,
        "beam_width": 2,
        "branch_factor": 2,
        "rounds": 6,
        "confidence": 0.9,
    }
    rollouts = 400
    world: ClassVar = {"val": 24}
    """With 8, an improvement by one word is not told from chance."""
