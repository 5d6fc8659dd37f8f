"""Contract suites for plugins, and what tests of agents need: fakes, clocks, the canonical scenario."""
