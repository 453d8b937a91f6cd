"""The machines that a profile or an option names, and what is refused before anything is reached."""

from typing import Any

import pytest

from loadgen.errors import ProfileError
from loadgen.profile.document import build_profile
from loadgen.profile.schema import Cluster

ONE = {"engine": "attach", "url": "http://a:1"}


def built(**cluster: Any) -> Cluster:
    return build_profile({"server": ONE, "cluster": cluster}, where="p.toml").cluster


def test_the_load_comes_from_this_machine_unless_others_are_named() -> None:
    assert not built().remote
    assert built(hosts=["a"]).remote
    assert built(scheduler="tcp://a:8786").remote


@pytest.mark.parametrize("host", ["a", "10.0.0.1", "me@a", "me@a:2222", "a:22", "[fe80::1]:22", "me@[::1]", "a_b.c-d"])
def test_hosts_that_are_taken(host: str) -> None:
    assert built(hosts=[host]).hosts == [host]


@pytest.mark.parametrize("host", ["", "-oProxyCommand=x", "a b", "a:", "a:0", "a:99999", "me:pw@a", "::1", "a;b", "@a"])
def test_hosts_that_are_refused(host: str) -> None:
    with pytest.raises(ProfileError, match="must look like name, user@name"):
        built(hosts=[host])


@pytest.mark.parametrize("address", ["tcp://a:8786", "tls://10.0.0.1:1", "tcp://[::1]:8786"])
def test_schedulers_that_are_taken(address: str) -> None:
    assert built(scheduler=address).scheduler == address


@pytest.mark.parametrize("address", ["", "a:8786", "http://a:8786", "tcp://a", "tcp://a:0", "tcp://a:70000"])
def test_schedulers_that_are_refused(address: str) -> None:
    with pytest.raises(ProfileError, match="must look like tcp://host:port"):
        built(scheduler=address)


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"hosts": ["a"], "scheduler": "tcp://b:1"}, "give one of them"),
        ({"hosts": ["a", "b", "a"]}, "names a twice"),
        ({"scheduler": "tcp://b:1", "python": "/usr/bin/python3"}, "python is for hosts"),
        ({"scheduler": "tcp://b:1", "port": 8786}, "port is for hosts"),
        ({"hosts": ["a"], "on_loss": "wait"}, "'go-on'"),
        ({"host": ["a"]}, "did you mean cluster.hosts?"),
    ],
)
def test_what_does_not_go_together(cluster: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileError) as caught:
        built(**cluster)
    assert words in str(caught.value)
    assert "p.toml" in str(caught.value)


def test_without_a_server_there_is_no_load_to_send() -> None:
    document = {"server": {"engine": "none"}, "load": {"concurrency": 0}, "cluster": {"hosts": ["a"]}}
    with pytest.raises(ProfileError, match="no server to load"):
        build_profile(document, where="p.toml")


@pytest.mark.parametrize("load", [{"source_addresses": ["127.0.0.2"]}, {"cpus": "0-3"}, {"data": "sample"}])
def test_what_is_of_this_machine_is_refused_where_others_send_the_load(load: dict[str, Any]) -> None:
    document = {"server": ONE, "load": load}
    assert not build_profile(document, where="p.toml").cluster.remote
    with pytest.raises(ProfileError, match=f"load.{next(iter(load))} is of the machine that vramp runs on"):
        build_profile(document | {"cluster": {"hosts": ["a"]}}, where="p.toml")
