"""Where the ranks are to meet, and over which interface they will talk."""

from __future__ import annotations

import pytest

from collectives.doctor.checks.network import gloo_choice, several_hosts
from collectives.doctor.snapshot import Interface, Lookup, Port, Torch
from tests.support.snapshots import ETH0, LO, MET, TORCHRUN, TWO_HOSTS, found, one, with_environ

DOCKER = Interface("docker0", ("172.17.0.1",))
BYHAND = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}
NODE7 = Lookup("node7", ("10.0.0.1",))
FREE = Port("29500", "free")
AWAY = {"master": Lookup("node7", ("10.0.0.7",)), "port": Port("29500", "not tried")}


def test_an_address_that_does_not_resolve_is_a_problem() -> None:
    finding = one(BYHAND, master=Lookup("node7", error="Name or service not known"), port=FREE)
    assert finding.title == "MASTER_ADDR='node7' does not resolve: Name or service not known"


def test_a_loopback_address_is_a_problem_only_where_there_are_several_hosts() -> None:
    assert found(TORCHRUN, **MET) == []
    assert "is 127.0.0.1, but the job has several hosts" in one(TWO_HOSTS, **MET).title
    both = {**MET, "master": Lookup("node7", ("10.0.0.1", "127.0.1.1"))}
    assert "is 127.0.1.1, but the job has several hosts" in one(TWO_HOSTS, **both).title


def test_rank_0_on_another_host_than_the_address_says_is_a_problem() -> None:
    there = Lookup("node7", ("10.0.0.7",))
    finding = one(BYHAND, master=there, port=FREE)
    assert "is 10.0.0.7, which no interface of this host has" in finding.title
    assert found({**BYHAND, "RANK": "1"}, master=there, port=FREE) == []
    assert found(BYHAND, master=NODE7, port=FREE) == []


def test_a_slow_address_is_a_warning() -> None:
    slow = Lookup("node7", ("10.0.0.1",), seconds=5.0)
    finding = one(BYHAND, master=slow, port=FREE)
    assert (finding.severity, finding.title) == (
        "warning",
        "MASTER_ADDR='node7' took 5.0 s to resolve",
    )


@pytest.mark.parametrize("number", ["http", "0", "70000", ""])
def test_a_port_that_is_no_number_is_a_problem(number: str) -> None:
    finding = one(BYHAND, master=NODE7, port=Port(number, "not tried"))
    assert finding.title == f"MASTER_PORT={number!r} is no number from 1 to 65535"


def test_a_port_that_is_taken_is_a_problem_with_the_way_to_find_who_has_it() -> None:
    finding = one(BYHAND, master=NODE7, port=Port("29500", "taken"))
    assert finding.title == "MASTER_PORT=29500 is in use on this host"
    assert "sport = :29500" in finding.remedy
    assert "Lightning-AI/pytorch-lightning#2537" in finding.see


def test_a_port_that_only_root_may_use_is_a_problem() -> None:
    assert "must not listen" in one(BYHAND, master=NODE7, port=Port("80", "not allowed")).title


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("eth7", "names no interface of this host"),
        ("^lo", "gloo knows neither NCCL's ^ and = nor addresses"),
        ("10.0.0.1", "gloo knows neither NCCL's ^ and = nor addresses"),
        ("ib0", "has no address, or is down"),
        ("eth0,eth7", "names no interface"),
    ],
)
def test_a_gloo_interface_that_is_none_is_a_problem_that_names_those_there_are(
    name: str, wrong: str
) -> None:
    finding = one({"GLOO_SOCKET_IFNAME": name}, interfaces=(LO, ETH0, Interface("ib0")))
    assert wrong in finding.title
    assert "eth0 (10.0.0.1), lo (127.0.0.1)" in finding.remedy


@pytest.mark.parametrize("name", ["eth0", "lo", "lo,eth0"])
def test_a_gloo_interface_that_is_there_is_right(name: str) -> None:
    assert found({"GLOO_SOCKET_IFNAME": name}) == []


def test_where_addresses_are_not_known_an_interface_is_known_by_its_name_alone() -> None:
    interfaces = (Interface("lo0"), Interface("en0"))
    assert found({"GLOO_SOCKET_IFNAME": "en0"}, interfaces=interfaces) == []
    assert "names no interface" in one({"GLOO_SOCKET_IFNAME": "en7"}, interfaces=interfaces).title
    assert found({"GLOO_SOCKET_IFNAME": "en7"}, interfaces=()) == []
    assert gloo_choice(with_environ({}, interfaces=interfaces))[0] == "10.0.0.1"


@pytest.mark.parametrize(
    ("value", "right"),
    [
        ("eth", True),
        ("=eth0", True),
        ("^docker", True),
        ("ib,eth", True),
        ("ib", False),
        ("=eth", False),
    ],
)
def test_nccls_interface_is_a_list_of_beginnings(value: str, *, right: bool) -> None:
    cuda = Torch("2.13.0+cu128", ("gloo", "nccl"), "12.8", "cuda", ("H200",))
    findings = found({"NCCL_SOCKET_IFNAME": value}, torch=cuda)
    assert [one.title for one in findings] == (
        [] if right else [f"NCCL_SOCKET_IFNAME={value} matches no interface of this host"]
    )


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (Lookup("here", ("127.0.1.1",)), "resolves to 127.0.1.1"),
        (Lookup("here", error="Name or service not known"), "does not resolve"),
        (Lookup("here", ("10.9.9.9",)), "10.9.9.9, which no interface of this host has"),
    ],
)
def test_a_host_name_that_others_cannot_use_is_a_problem_of_several_hosts(
    name: Lookup, what: str
) -> None:
    assert found(TORCHRUN, **MET, name=name) == []
    finding = one(TWO_HOSTS, **AWAY, name=name)
    assert what in finding.title
    assert "GLOO_SOCKET_IFNAME" in finding.remedy
    assert "eth0 (10.0.0.1)" in finding.remedy
    assert found({**TWO_HOSTS, "GLOO_SOCKET_IFNAME": "eth0"}, **AWAY, name=name) == []


def test_a_host_name_that_is_dockers_address_is_warned_of() -> None:
    name, interfaces = Lookup("here", ("172.17.0.1",)), (LO, DOCKER, ETH0)
    finding = one(name=name, interfaces=interfaces)
    assert (finding.severity, "docker0" in finding.title) == ("warning", True)
    assert finding.remedy == "set GLOO_SOCKET_IFNAME to one of eth0 (10.0.0.1)"
    assert one(TWO_HOSTS, **AWAY, name=name, interfaces=interfaces).severity == "problem"


def test_nccls_first_interface_may_not_lead_out_of_the_host() -> None:
    veth = Interface("veth12", ("10.7.0.1",))
    cuda = Torch("2.13.0+cu128", ("gloo", "nccl"), "12.8", "cuda", ("H200",))
    finding = one(TWO_HOSTS, **AWAY, interfaces=(LO, DOCKER, veth, ETH0), torch=cuda)
    assert "NCCL would take veth12" in finding.title
    assert found(TWO_HOSTS, **AWAY, interfaces=(LO, DOCKER, ETH0), torch=cuda) == []


@pytest.mark.parametrize(("forth", "back"), [(5.0, 0.0), (0.0, 5.0)])
def test_a_slow_resolver_is_warned_of(forth: float, back: float) -> None:
    finding = one(name=Lookup("here", ("10.0.0.1",), forth, back_seconds=back))
    assert "took 5.0 s" in finding.title
    assert "RES_OPTIONS" in finding.remedy


def test_tls_is_not_in_torchs_wheels() -> None:
    assert one({"GLOO_DEVICE_TRANSPORT": "TCP_TLS"}).title == "GLOO_DEVICE_TRANSPORT=TCP_TLS is set"


def test_gloos_choice_is_told_as_torch_makes_it() -> None:
    assert gloo_choice(with_environ({}))[0] == "eth0 10.0.0.1"
    assert gloo_choice(with_environ({"GLOO_SOCKET_IFNAME": "lo"}))[0] == "lo 127.0.0.1"
    assert gloo_choice(with_environ({}, name=Lookup("here", ("10.9.9.9",))))[0] == "lo 127.0.0.1"


@pytest.mark.parametrize(
    ("environ", "several"),
    [(TORCHRUN, False), (TWO_HOSTS, True), ({"SLURM_NNODES": "2"}, True), ({}, False)],
)
def test_several_hosts_are_known_by_the_launcher(environ: dict[str, str], *, several: bool) -> None:
    assert several_hosts(environ) is several
