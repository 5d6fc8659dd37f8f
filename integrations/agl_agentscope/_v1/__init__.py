"""AgentScope 1, whose agents are called and hear each other in hubs."""
