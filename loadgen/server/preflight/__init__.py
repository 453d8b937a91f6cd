"""Before a start: what of profile, installation and box would make it fail, or make its numbers mean less."""
