import pytest
from agl_testing.algorithm_contract import AlgorithmContract

from agl_core.training.algorithms import (
    GRPO,
    RLOO,
    GRPOOptions,
    Reinforce,
    ReinforceOptions,
    RLOOOptions,
)


class TestGRPO(AlgorithmContract):
    @pytest.fixture
    def build_algorithm(self):
        return lambda: GRPO(GRPOOptions())


class TestUnscaledGRPO(AlgorithmContract):
    @pytest.fixture
    def build_algorithm(self):
        return lambda: GRPO(GRPOOptions(scale=False, weighting="attempt"))


class TestRLOO(AlgorithmContract):
    @pytest.fixture
    def build_algorithm(self):
        return lambda: RLOO(RLOOOptions())


class TestReinforce(AlgorithmContract):
    takes_baseline = False

    @pytest.fixture
    def build_algorithm(self):
        return lambda: Reinforce(ReinforceOptions())


class TestReinforceWithBaseline(AlgorithmContract):
    @pytest.fixture
    def build_algorithm(self):
        return lambda: Reinforce(ReinforceOptions(baseline="mean", weighting="sequence"))
