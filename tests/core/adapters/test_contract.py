import pytest
from agl_testing.adapter_contract import AdapterContract

from agl_core.adapters import TrajectoryAdapter


class TestTrajectoryAdapter(AdapterContract):
    @pytest.fixture
    def build_adapter(self):
        return lambda agents, policies: TrajectoryAdapter(agents, policies=policies)
