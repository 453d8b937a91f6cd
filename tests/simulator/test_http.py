import socket
from collections.abc import Iterator

import pytest

from tests.simulator.conftest import TIMEOUT_S, Running, body_of, events_of, read_all, read_response, request, simulator


@pytest.fixture(scope="module")
def impatient() -> Iterator[Running]:
    """Closes idle connections almost at once."""
    with simulator("--keep-alive-s", "0.05") as running:
        yield running


def test_a_connection_serves_one_request_after_another(server: Running) -> None:
    with server.connect() as sock:
        for _ in range(3):
            sock.sendall(request(2))
            assert len(events_of(body_of(read_response(sock)))) == 3


def test_requests_sent_ahead_are_answered_in_order(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(request(2) + request(5) + request(3, close=True))
        responses = read_all(sock).split(b"HTTP/1.1 200 OK")[1:]
    assert [len(events_of(body_of(response))) for response in responses] == [3, 6, 4]


def test_a_request_may_come_in_pieces(server: Running) -> None:
    data = request(2, close=True)
    with server.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(0, len(data), 7):
            sock.sendall(data[index : index + 7])
        assert len(events_of(body_of(read_all(sock)))) == 3


def test_an_idle_connection_is_closed(impatient: Running) -> None:
    with impatient.connect() as sock:
        sock.sendall(request(2))
        assert len(events_of(body_of(read_all(sock)))) == 3


def test_an_answer_outlives_the_idle_time(impatient: Running) -> None:
    assert len(events_of(body_of(impatient.stream(200)))) == 201


def test_a_body_that_waits_to_be_invited(server: Running) -> None:
    head, _, body = request(2, close=True).partition(b"\r\n\r\n")
    with server.connect() as sock:
        sock.sendall(head + b"\r\nexpect: 100-continue\r\n\r\n")
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert len(events_of(body_of(read_all(sock)))) == 3


def test_bytes_that_are_not_http(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(b"\x16\x03\x01hello\r\n\r\n")
        assert read_all(sock).startswith(b"HTTP/1.1 400 ")


def test_bytes_that_are_not_http_during_an_answer(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(request(4000))
        sock.recv(100)
        sock.sendall(b"\x00\x01\x02 \r\n\r\n")
        with pytest.raises((AssertionError, ConnectionResetError)):
            read_response(sock)
    assert server.truth()["requests"]["aborted"] == 1


def test_a_client_that_goes_away_frees_its_sequence(server: Running) -> None:
    with server.connect() as sock:
        sock.sendall(request(8000))
        sock.recv(100)
    server.await_abort()
    counts = server.truth()["requests"]
    assert (counts["received"], counts["completed"], counts["aborted"], counts["open"]) == (1, 0, 1, 0)
    assert 'vllm:num_requests_running{engine="0",model_name="simulated"} 0.0' in server.client.get("/metrics").text


def test_a_client_that_does_not_read_loses_nothing_and_stops_nobody(server: Running) -> None:
    sock = socket.socket()
    # Small segments keep the server's send buffer small too: a few hundred events fill it.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 500)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(TIMEOUT_S)
    sock.connect(("127.0.0.1", server.port))
    with sock:
        sock.sendall(request(1500, close=True))
        # The other stream has as many tokens and ends while the first one's bytes pile up.
        assert len(events_of(body_of(server.stream(1500)))) == 1501
        events = events_of(body_of(read_all(sock)))
    words = [event["choices"][0]["text"] for event in events[:-1]]
    assert len(words) == 1500
    assert words[64:] == words[:-64]
    assert len(set(words)) == 64
