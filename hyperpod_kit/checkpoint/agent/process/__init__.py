"""The agent's own state and work: captures, events, orders and workers. Begin with `agent_captures`."""
