import pytest

from agl_core.adapters import TrajectoryAdapter
from agl_core.testing.adapter_contract import AdapterContract


class TestTrajectoryAdapter(AdapterContract):
    @pytest.fixture
    def build_adapter(self):
        return lambda agents, policies: TrajectoryAdapter(agents, policies=policies)
