"""The worker: a process that drives streams and reports a tick every 250 ms. `loadgen.fleet` starts and steers it."""
