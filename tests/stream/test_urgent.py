"""What cannot wait comes between: before a read is parsed, and between the histograms of a tick, without any loss."""

from loadgen.stream.channel import Channel
from loadgen.stream.stream import Stream
from loadgen.stream.tally import Meter, Tally


def test_it_comes_before_each_read_of_a_stream() -> None:
    seen: list[bool] = []
    channel = Channel(Meter(), lambda *_: None, lambda *_: None)
    channel.write = lambda _: None
    channel.urgent = lambda: seen.append(channel.answered)
    channel.feed(b"nobody asked for this", 1)
    channel.begin(Stream(stage=0, tally=Tally(), wire=b"POST", intended_ns=0))
    channel.feed(b"HTTP/1.1 200 OK\r\n", 2)
    channel.feed(b"Transfer-Encoding: chunked\r\n", 3)
    assert seen == [False, True]


def test_requests_sent_while_a_tick_is_drained_are_counted_once() -> None:
    tally, meter = Tally(), Meter()
    tally.ttft_ns.append(5_000_000)
    meter.read_lag_ns.append(1000)
    sent = 0

    def send() -> None:
        nonlocal sent
        sent += 1
        tally.sent += 1
        meter.send_lag_ns.append(1000)

    counted, lags, samples = 0, 0, 0
    for urgent in (send, send, lambda: None):
        stage, client = tally.drain(urgent), meter.drain(0, 0, urgent)
        counted += stage.sent
        lags += client.send_lag.count if client.send_lag is not None else 0
        samples += stage.latency["ttft"].count if "ttft" in stage.latency else 0
    assert (counted, lags) == (sent, sent)
    assert sent > 10
    assert samples == 1
