"""torch's DataLoader with an exact position: begin with `loader.ElasticLoader`."""
