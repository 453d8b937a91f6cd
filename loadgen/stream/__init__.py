"""One request on the wire: bytes out, timestamps in. The timed path begins here."""
