"""The offset of a host's clock from ours, as an interval that is certain to contain it.

A message sent at t0 by our clock, received at r0 and answered at r1 by the host's, whose answer arrives at t1, proves
r1 - t1 <= offset <= r0 - t0, whatever the network did: nothing arrives before it was sent. (NTP's four times, RFC 5905,
without its assumption that both ways take equally long.) Each message narrows the interval; between messages it
widens by what two clocks may drift apart. If a message contradicts the interval, one of the clocks was moved.
"""

from __future__ import annotations

_DRIFT = 1e-3
"""Two clocks, each slewed by at most 500 ppm (adjtimex), part by no more than this share of the time."""


class ClockOffset:
    """The offset of a host's clock, from the times of each message and its answer."""

    def __init__(self) -> None:
        self._least_ns = self._most_ns = 0.0
        self._at_ns: int | None = None

    @property
    def offset_ns(self) -> int:
        """Its clock minus ours: the middle of the interval; 0 before the first message."""
        return round((self._least_ns + self._most_ns) / 2)

    @property
    def uncertainty_ns(self) -> int:
        """Half the width of the interval."""
        return round((self._most_ns - self._least_ns) / 2)

    def add(self, sent_ns: int, received_ns: int, answered_ns: int, back_ns: int) -> int:
        """Take the times of a message; returns by how much a clock was moved, 0 if none was.

        `sent_ns` and `back_ns` are by our clock, `received_ns` and `answered_ns` by the host's.
        """
        # The clocks drift during the message, too.
        slack_ns = (back_ns - sent_ns) * _DRIFT
        least_ns, most_ns = answered_ns - back_ns - slack_ns, received_ns - sent_ns + slack_ns
        if self._at_ns is None:
            self._least_ns, self._most_ns, self._at_ns = least_ns, most_ns, back_ns
            return 0
        drift_ns = max(0, back_ns - self._at_ns) * _DRIFT
        known = max(least_ns, self._least_ns - drift_ns), min(most_ns, self._most_ns + drift_ns)
        before_ns, self._at_ns = self.offset_ns, back_ns
        if known[0] <= known[1]:
            self._least_ns, self._most_ns = known
            return 0
        self._least_ns, self._most_ns = least_ns, most_ns
        return self.offset_ns - before_ns
