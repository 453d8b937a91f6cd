"""One request on the wire: bytes out, timestamps in. Everything here is on the timed path."""
