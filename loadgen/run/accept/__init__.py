"""`vramp accept`: takes a box through its phases, and leaves what the certificate is made of.

`acceptance` keeps what was asked for and what is done, and makes the runs; `phases` has a function for each phase, in
their order, and goes through them. What is judged, and how, is not here: see `loadgen.record.acceptance`.
"""
