"""Commands about the configuration and the lifecycle bundle."""
