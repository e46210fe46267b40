"""How agents, trainers and nodes talk: sealed lines over sockets. Begin with `channel`."""
