"""A whole cluster at one look, from what its nodes publish already: begin with `fleet_view`."""
