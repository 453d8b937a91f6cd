"""A stand-in for NVIDIA's library, in C, so that the unmodified pynvml runs against it."""
