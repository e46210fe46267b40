"""The trainer's side of the agents: started, talked to and watched. Begin with `agent_supervisor`."""
