"""What load is sent, one stage after another: plans that are known, and searches that decide as they go."""
