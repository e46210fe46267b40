"""What only AWS can answer about a configuration: gather facts (reads only), then judge them with pure functions."""
