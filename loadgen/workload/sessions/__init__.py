"""Sessions of agents: requests that wait for each other, and what each repeats of the ones before it."""
