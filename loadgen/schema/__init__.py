"""What is written or sent: the structs of journal, snapshot, result and samples, and nothing that computes them."""
