"""Who may call the endpoint: keys, and the signatures made with them."""
