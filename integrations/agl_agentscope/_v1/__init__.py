"""AgentScope 1, whose agents are called and exchange messages in hubs."""
