"""Where workers are placed, by made-up trees of sysfs: sockets, SMT siblings, NUMA nodes and network interfaces."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.run.placement import Topology, cpus_near, format_cpus, placement, read_topology
from loadgen.system import Cpus, parse_cpus

NOTHING = frozenset[int]()


def machine(root: Path, *, cores: int, threads: int, nodes: int) -> Topology:
    """Numbered as Linux does: first one CPU of every core, then their siblings; each node has a run of cores."""
    for cpu in range(cores * threads):
        siblings = ",".join(str(cpu % cores + thread * cores) for thread in range(threads))
        write(root / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings)
    a_node = cores // nodes
    for node in range(nodes):
        runs = [f"{node * a_node + t * cores}-{(node + 1) * a_node - 1 + t * cores}" for t in range(threads)]
        write(root / f"devices/system/node/node{node}/cpulist", ",".join(runs))
    write(root / "devices/system/cpu/cpufreq/boost", "1")
    write(root / "devices/system/node/has_cpu", f"0-{nodes - 1}")
    return read_topology(root)


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def two_sockets(root: Path) -> Topology:
    """Two EPYC 9554 with SMT, a NUMA node each."""
    return machine(root, cores=128, threads=2, nodes=2)


def four_nodes_a_socket(root: Path) -> Topology:
    """The same with NPS4."""
    return machine(root, cores=128, threads=2, nodes=8)


def one_socket_without_smt(root: Path) -> Topology:
    return machine(root, cores=32, threads=1, nodes=1)


MACHINES: tuple[Callable[[Path], Topology], ...] = (two_sockets, four_nodes_a_socket, one_socket_without_smt)


@pytest.mark.parametrize("content", ["", "garbage", "0-99999999", "-1", "\0"])
def test_lists_of_cpus_that_cannot_be_read_are_left_out(content: str, tmp_path: Path) -> None:
    whole = machine(tmp_path, cores=4, threads=2, nodes=2)
    (tmp_path / "devices/system/cpu/cpu0/topology/thread_siblings_list").write_text(content)
    (tmp_path / "devices/system/node/node1/cpulist").unlink()
    (tmp_path / "devices/system/node/node1/cpulist").mkdir()
    write(tmp_path / "class/net/eth0/device/numa_node", content)
    topology = read_topology(tmp_path)
    assert topology.nodes == {0: whole.nodes[0]}
    assert topology.siblings == {cpu: whole.siblings[cpu] for cpu in range(1, 8)}
    assert cpus_near("eth0", topology, tmp_path) == NOTHING


def everything(topology: Topology) -> Cpus:
    return frozenset(topology.siblings)


def placed(topology: Topology, server: str, workers: int = 4, near: str | None = None) -> tuple[str, str]:
    """The CPUs of the workers on a machine that vramp may use as a whole, and those avoided."""
    given = parse_cpus(server)
    close = topology.on_nodes_of(given) if near is None else parse_cpus(near)
    found = placement(everything(topology), given, close, workers, topology)
    return (found.cpus if found.pinned else f"not pinned: {found.why}"), found.avoided


def test_a_tree_of_sysfs_is_read(tmp_path: Path) -> None:
    topology = four_nodes_a_socket(tmp_path)
    assert len(topology.siblings) == 256
    assert topology.siblings[5] == topology.siblings[133] == {5, 133}
    assert format_cpus(topology.nodes[7]) == "112-127,240-255"


def test_a_machine_that_tells_nothing_has_cores_all_the_same(tmp_path: Path) -> None:
    assert read_topology(tmp_path) == Topology()
    assert placement(frozenset(range(4)), frozenset({0}), NOTHING, 3, Topology()).cpus == "1-3"


@pytest.mark.parametrize(
    ("of", "server", "workers", "cpus", "avoided"),
    [
        # Beside it on its own node, and neither on its CPUs nor on their siblings.
        (two_sockets, "0-31", 8, "32-63,160-191", "0-31,128-159"),
        (four_nodes_a_socket, "0-11,128-139", 4, "12-15,140-143", "0-11,128-139"),
        (one_socket_without_smt, "0-27", 4, "28-31", "0-27"),
        # Too few cores are left on its node.
        (four_nodes_a_socket, "0-11,128-139", 5, "12-127,140-255", "0-11,128-139"),
        (two_sockets, "0-63,128-191", 4, "64-127,192-255", "0-63,128-191"),
        # Two workers on a core are better than one next to the server's.
        (two_sockets, "0-125,128-253", 4, "126-127,254-255", "0-125,128-253"),
        # It has one CPU of every core: their siblings are all that is left.
        (two_sockets, "0-127", 16, "128-255", "0-127"),
    ],
)
def test_off_the_cpus_that_the_server_was_given(
    tmp_path: Path, of: Callable[[Path], Topology], server: str, workers: int, cpus: str, avoided: str
) -> None:
    assert placed(of(tmp_path), server, workers) == (cpus, avoided)


def test_a_server_that_may_use_everything_leaves_them_where_they_are(tmp_path: Path) -> None:
    topology = two_sockets(tmp_path)
    words = "not pinned: the server may use every CPU that vramp may use"
    assert placed(topology, "0-255") == (words, "")


def test_too_few_cpus_for_the_workers_are_worse_than_none_of_their_own(tmp_path: Path) -> None:
    topology = one_socket_without_smt(tmp_path)
    words = "not pinned: 3 workers need more than the CPUs that the server leaves: 30-31"
    assert placed(topology, "0-29", 3) == (words, "")


def test_for_a_server_elsewhere_the_node_of_the_network_interface_counts(tmp_path: Path) -> None:
    topology = two_sockets(tmp_path)
    write(tmp_path / "class/net/eth0/device/numa_node", "1")
    near = cpus_near("eth0", topology, tmp_path)
    found = placement(everything(topology), NOTHING, near, 8, topology)
    assert (found.cpus, found.avoided, found.why) == (
        "64-127,192-255",
        "",
        "on the NUMA node of the interface to the server",
    )


@pytest.mark.parametrize("node", ["-1", None])
def test_an_interface_without_a_node_leaves_them_where_they_are(tmp_path: Path, node: str | None) -> None:
    topology = two_sockets(tmp_path)
    if node is not None:
        write(tmp_path / "class/net/eth0/device/numa_node", node)
    near = cpus_near("eth0", topology, tmp_path)
    found = placement(everything(topology), NOTHING, near, 8, topology)
    assert (found.pinned, found.why) == (False, "the server is on another machine")


def test_a_bond_is_near_all_interfaces_that_it_combines(tmp_path: Path) -> None:
    topology = four_nodes_a_socket(tmp_path)
    for name, node in (("eth0", 0), ("eth1", 1)):
        write(tmp_path / f"class/net/{name}/device/numa_node", str(node))
        (tmp_path / "class/net/bond0").mkdir(exist_ok=True)
        (tmp_path / f"class/net/bond0/lower_{name}").symlink_to(tmp_path / f"class/net/{name}")
    assert cpus_near("bond0", topology, tmp_path) == topology.nodes[0] | topology.nodes[1]


@pytest.mark.parametrize("text", ["x", "3-1", "0-99999", "-1", "1-", "0x3", "1;2", "8192", "٣"])
def test_what_is_no_list_of_cpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected CPUs as Linux lists them"):
        parse_cpus(text)


@given(st.frozensets(st.integers(0, 8191), max_size=60))
def test_a_list_that_is_written_is_read_again(cpus: Cpus) -> None:
    assert parse_cpus(format_cpus(cpus) + "\n") == cpus


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> list[Topology]:
    return [make(tmp_path_factory.mktemp("sys")) for make in MACHINES]


@given(st.data())
def test_workers_have_room_and_disturb_no_server(machines: list[Topology], data: st.DataObject) -> None:
    topology = data.draw(st.sampled_from(machines))
    some = st.frozensets(st.sampled_from(sorted(topology.siblings)))
    usable = data.draw(some.filter(bool) | st.just(everything(topology)))
    server, near = data.draw(some), data.draw(some | st.sampled_from(list(topology.nodes.values())))
    workers = data.draw(st.integers(1, 300))
    found = placement(usable, server, near, workers, topology)
    cpus = parse_cpus(found.cpus)
    assert found == placement(usable, server, near, workers, topology)
    assert cpus <= usable
    assert found.words
    if not found.pinned:
        assert cpus == usable
        return
    assert len(cpus) >= workers
    assert not cpus & server
    assert not cpus & parse_cpus(found.avoided)
    if "siblings" not in found.why:
        assert not cpus & topology.with_siblings(server)
        assert parse_cpus(found.avoided) == topology.with_siblings(server)
