"""One request on the wire: sends its bytes and timestamps the answer. Everything here is on the timed path."""
