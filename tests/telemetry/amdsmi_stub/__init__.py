"""A stand-in for ROCm's libamd_smi.so that the unmodified amdsmi wrapper binds and calls."""
