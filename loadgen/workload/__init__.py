"""What is sent and when: prompts and arrivals, pure functions of the seed."""
