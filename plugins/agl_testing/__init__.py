"""Contract suites for plugins, and tools to test agents: fakes, clocks, the canonical scenario."""
