"""Folds and judgements: from the lines of a journal to the figures of stages, and to the result."""
