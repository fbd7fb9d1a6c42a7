"""Headers and descriptions: what is packed comes back, and garbage is an error, never a crash."""

from __future__ import annotations

import dataclasses
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from collectives.description import decode, encode
from collectives.header import MOST_DESCRIBED, MOST_LEAVES, SIZE, Header, Pair, digest
from collectives.messages import Leaf
from collectives.signature import PHASES, Signature

SIGNATURE = Signature(
    op="shift(offset=1, axis='ring')", name="kv", topology="Ring(2)", phase="forward",
    grad="grad", step=(1, 2), tensors="(float32[2])", sequence=5,
)  # fmt: skip
PAIR = Pair(peer=1, sends=11, expects=11, leaves=3, smooth=True, key=0)
HEADER = Header.of(SIGNATURE, PAIR, phase=0, grad=True)

integers = st.integers(0, 2**64 - 1)
headers = st.builds(
    Header,
    sequence=integers,
    phase=st.integers(0, len(PHASES) - 1),
    grad=st.booleans(),
    smooth=st.booleans(),
    discover=st.just(value=False),
    leaves=st.integers(0, 65_535),
    describes=st.just(0),
    facts=integers,
    hints=st.tuples(*[st.integers(0, 65_535)] * 4),
    sends=integers,
    expects=integers,
    label=st.text("abcdefgh ", max_size=12).map(str.strip),
)
leaves = st.lists(
    st.builds(
        Leaf,
        st.lists(st.integers(0, 1000), max_size=3).map(tuple),
        st.sampled_from([torch.float64, torch.bfloat16, torch.bool, torch.complex64, torch.int8]),
    ),
    max_size=20,
)


@given(headers)
def test_a_header_takes_64_bytes_and_comes_back_as_it_was(header: Header) -> None:
    assert len(header.pack()) == SIZE
    assert Header.unpack(header.pack()) == header


@given(st.binary(max_size=2 * SIZE))
def test_bytes_by_chance_are_no_header(data: bytes) -> None:
    with pytest.raises(ValueError, match="no header"):
        Header.unpack(data)


@given(headers, st.integers(0, SIZE - 1), st.integers(1, 255))
def test_a_damaged_header_is_refused_or_another_one(
    header: Header, place: int, damage: int
) -> None:
    data = bytearray(header.pack())
    data[place] ^= damage
    try:
        damaged = Header.unpack(bytes(data))
    except ValueError:
        return
    assert str(damaged).isprintable()
    assert damaged.leaves <= 65_535
    assert damaged.describes <= MOST_DESCRIBED
    assert damaged != header


@given(headers, headers)
def test_both_ends_see_a_difference_or_neither_does(one: Header, other: Header) -> None:
    assert bool(one.differences(other)) == bool(other.differences(one))


def test_two_ends_of_one_exchange_do_not_differ() -> None:
    other = dataclasses.replace(HEADER, sends=HEADER.expects, expects=HEADER.sends)
    assert HEADER.differences(other) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"op": "shift(offset=-1, axis='ring')"}, "operation"),
        ({"name": "other"}, "name"),
        ({"topology": "Ring(2, periodic=False)"}, "topology"),
        ({"step": (1, 3)}, "step"),
        ({"sequence": 6}, "number: #5 / #6"),
    ],
)
def test_each_fact_that_differs_is_named_alone(change: dict[str, object], word: str) -> None:
    other = Header.of(dataclasses.replace(SIGNATURE, **change), PAIR, phase=0, grad=True)  # type: ignore[arg-type]
    assert HEADER.differences(other) == [word]


def test_phases_are_named_in_words() -> None:
    other = dataclasses.replace(HEADER, phase=1)
    assert HEADER.differences(other) == ["phase: forward / backward"]


def test_grad_modes_matter_where_a_gradient_can_flow() -> None:
    other = Header.of(SIGNATURE, PAIR, phase=0, grad=False)
    assert HEADER.differences(other) == ["grad: grad / no_grad"]
    whole = PAIR._replace(smooth=False)
    assert not Header.of(SIGNATURE, whole, phase=0, grad=True).differences(
        Header.of(SIGNATURE, whole, phase=0, grad=False)
    )


def test_hints_that_are_alike_by_chance_do_not_hide_a_difference() -> None:
    assert HEADER.differences(dataclasses.replace(HEADER, facts=0)) == [
        "operation or name or topology or step"
    ]


def test_tensors_are_compared_each_way() -> None:
    (sent,) = HEADER.differences(dataclasses.replace(HEADER, expects=1))
    (awaited,) = HEADER.differences(dataclasses.replace(HEADER, sends=1, leaves=1))
    assert sent == "tensors: what it awaits is not what is sent here"
    assert awaited == "tensors: what it sends (1 tensor) is not what is awaited here"


def test_a_long_name_is_cut_and_an_unprintable_one_is_shown() -> None:
    header = dataclasses.replace(HEADER, label="shift Größenänderung\n" * 3)
    assert str(Header.unpack(header.pack())) == "exchange #5 'shift Größ' (forward, grad)"
    assert "?" in str(Header.unpack(dataclasses.replace(HEADER, label="a\nb").pack()))


def damaged(at: int, layout: str, value: int) -> bytes:
    data = bytearray(HEADER.pack())
    struct.pack_into(layout, data, at, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (damaged(3, "<B", 2), "version 2, not 1"),
        (damaged(4, "<B", 8), "makes no sense"),
        (damaged(5, "<B", 7), "makes no sense"),
        (damaged(8, "<I", 2**31), "announces 2147483648 bytes"),
        (damaged(4, "<B", 4), "announces 0 bytes for 3 tensors"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Header.unpack(data)


def test_a_digest_is_the_same_in_every_process() -> None:
    assert digest(("a", 1)) == 0xACB2AFD16F387F9A


@given(leaves)
def test_a_description_comes_back_as_it_was(described: list[Leaf]) -> None:
    assert list(decode(encode(described), len(described))) == described


@given(st.binary(max_size=100), st.integers(0, 20))
def test_bytes_by_chance_are_a_description_or_refused(data: bytes, count: int) -> None:
    try:
        described = decode(data, count)
    except ValueError:
        return
    assert len(described) == count
    assert encode(described) == data
    assert all(leaf.nbytes <= 2**46 for leaf in described)


def test_every_dtype_of_torch_has_a_number() -> None:
    quantized = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    for dtype in dtypes - quantized:
        assert decode(encode([Leaf((), dtype)]), 1) == (Leaf((), dtype),)


@pytest.mark.parametrize(
    ("described", "text"),
    [
        ([Leaf((), torch.qint8)], "has no description"),
        ([Leaf((2**47,), torch.int8)], "larger than any memory"),
        ([Leaf((0, 2**47), torch.int8)], "larger than any memory"),
        ([Leaf((1,) * 65, torch.int8)], "at most 64 dims"),
        ([Leaf((), torch.int8)] * (MOST_LEAVES + 1), "at most 10000 tensors"),
        ([Leaf((1,) * 60, torch.int8)] * 200, "more than 65536"),
    ],
)
def test_what_is_too_large_cannot_be_described(described: list[Leaf], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        encode(described)


@pytest.mark.parametrize(
    ("data", "count", "text"),
    [
        (b"\xff\x00", 1, "no dtype of number 255"),
        (b"\x00", 1, "too short for 1 "),
        (b"\x00\x02" + b"\x00" * 8, 1, "too short"),
        (b"\x00\x00\x00", 1, "too long"),
        (b"\x00\x01" + b"\xff" * 8, 1, "larger than any memory"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(data: bytes, count: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decode(data, count)
