"""What load to send, stage by stage: plans that are fixed, and searches that decide as they go."""
