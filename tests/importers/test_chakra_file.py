"""The fast reader of Chakra files: agrees with protobuf, shares what is equal, and says what is malformed."""

from __future__ import annotations

import gzip
import random
import resource
from pathlib import Path
from typing import Any

import pytest

from phantora.errors import UserError
from phantora.exporters.chakra_schema import GlobalMetadata, Node
from phantora.importers.chakra_file import ChakraFile, ChakraReader, find_chakra, read_chakra, read_files

_INTEGERS = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _framed(*messages: Any) -> bytes:
    parts = [message if isinstance(message, bytes) else message.SerializeToString() for message in messages]
    return b"".join(_varint(len(part)) + part for part in parts)


def _write(path: Path, *messages: Any) -> Path:
    path.write_bytes(_framed(*messages))
    return path


def _read(path: Path, *messages: Any) -> ChakraFile:
    return ChakraReader().read(_write(path, *messages))


def _node(id: int = 1, **attributes: Any) -> Any:
    node = Node(id=id, name=f"kernel {id}", type=4, duration_micros=7, data_deps=[id + 5, 3], ctrl_deps=[1 << 40])
    for name, value in attributes.items():
        node.attr.add(name=name, int64_val=value)
    return node


@pytest.fixture
def metadata() -> Any:
    return GlobalMetadata(version="0.0.4")


def test_fields_of_a_node(tmp_path: Path, metadata: Any) -> None:
    node = _node(9, comm_size=1 << 40, made_up=-3)
    node.start_time_micros = 4
    node.inputs.values, node.inputs.shapes, node.outputs.types = "[1]", "[[2]]", '["float"]'
    metadata.attr.add(name="rank", int64_val=2)
    file = _read(tmp_path / "t.0.et", metadata, node)
    assert (file.version, file.metadata, len(file.nodes)) == ("0.0.4", {"rank": 2}, 1)
    read = file.nodes[0]
    assert (read.id, read.type, read.name, read.start_micros, read.duration_micros) == (9, 4, "kernel 9", 4, 7)
    assert (read.data_deps, read.ctrl_deps) == ((14, 3), (1 << 40,))
    assert read.attributes == {"comm_size": 1 << 40, "made_up": -3}
    assert (read.inputs, read.outputs) == (("[1]", "[[2]]", ""), ("", "", '["float"]'))


def test_every_case_of_a_value(tmp_path: Path, metadata: Any) -> None:
    node, expected = Node(id=1), {}

    def add(name: str, field: str, value: Any) -> None:
        attribute = node.attr.add(name=name)
        if isinstance(value, tuple):
            getattr(attribute, field).values.extend(value)
        else:
            setattr(attribute, field, value)
        expected[name] = value

    for case in _INTEGERS:
        low = 0 if case.startswith(("u", "f")) else -5
        add(case, f"{case}_val", low)
        add(f"{case}s", f"{case}_list", (low, 1, 300, (1 << (31 if "32" in case else 63)) - 1))
    add("double", "double_val", 0.1)
    add("doubles", "double_list", (0.1, -2.5))
    add("float", "float_val", 0.5)
    add("floats", "float_list", (0.5, 2.0))
    add("yes", "bool_val", True)
    add("bools", "bool_list", (True, False, True))
    add("text", "string_val", "naïve")
    add("texts", "string_list", ("a", "", "b"))
    add("raw", "bytes_val", b"\xff\x00")
    add("raws", "bytes_list", (b"", b"\x01"))
    add("none", "string_list", ())
    node.attr.add(name="valueless")
    expected["valueless"] = None
    read = _read(tmp_path / "t.0.et", metadata, node).nodes[0].attributes
    assert read == expected
    assert [type(read[name]) for name in ("yes", "int32", "double")] == [bool, int, float]


def test_packed_and_unpacked_dependencies(tmp_path: Path, metadata: Any) -> None:
    packed = b"\x08\x01\x2a\x03\x05\xac\x02"  # data_deps [5, 300] in one field
    unpacked = b"\x08\x02\x28\x05\x28\xac\x02\x20\x07"  # the same as two fields, and ctrl_deps [7]
    file = _read(tmp_path / "t.0.et", metadata, packed, unpacked)
    assert [node.data_deps for node in file.nodes] == [(5, 300), (5, 300)]
    assert file.nodes[1].ctrl_deps == (7,)


def test_unknown_fields_are_passed_over(tmp_path: Path, metadata: Any) -> None:
    strange = b"\x08\x01" + b"\xfa\x06\x02hi" + b"\xf8\x06\x05" + b"\xf5\x06abcd" + b"\xf1\x06abcdefgh"
    assert _read(tmp_path / "t.0.et", metadata, strange).nodes[0].id == 1


def test_agrees_with_protobuf_on_random_messages(tmp_path: Path, metadata: Any) -> None:
    draw = random.Random(1)
    nodes = []
    for _ in range(300):
        node = Node(
            id=draw.getrandbits(draw.choice((4, 64))), type=draw.randrange(8), duration_micros=draw.getrandbits(40)
        )
        node.name = "x" * draw.choice((0, 3, 200))
        node.data_deps.extend(draw.getrandbits(draw.choice((3, 30))) for _ in range(draw.randrange(4)))
        for i in range(draw.randrange(5)):
            node.attr.add(name=f"a{i}", string_val="v" * draw.choice((1, 300)))
        nodes.append(node)
    for read, node in zip(_read(tmp_path / "t.0.et", metadata, *nodes).nodes, nodes, strict=True):
        assert (read.id, read.type, read.name, read.duration_micros) == (
            node.id,
            node.type,
            node.name,
            node.duration_micros,
        )
        assert list(read.data_deps) == list(node.data_deps)
        assert read.attributes == {one.name: one.string_val for one in node.attr}


def test_equal_nodes_and_files_are_shared(tmp_path: Path, metadata: Any) -> None:
    one, two = _node(1, comm_size=5), _node(2, comm_size=5)
    first, second, third = read_files(
        [
            _write(tmp_path / "t.0.et", metadata, one, two),
            _write(tmp_path / "t.1.et", metadata, one, two),
            _write(tmp_path / "t.2.et", metadata, one, _node(3)),
        ]
    )
    assert first.nodes is second.nodes and first.content == second.content != third.content
    assert first.nodes[0] is third.nodes[0]
    assert [node.serial for node in third.nodes] == [0, 2]
    assert (second.path.name, third.column("id"), third.column("comm_size", 0)) == ("t.1.et", [1, 3], [5, 0])


def test_gzipped_files(tmp_path: Path, metadata: Any) -> None:
    data = _framed(metadata, _node())
    (tmp_path / "t.0.et").write_bytes(gzip.compress(data))
    (tmp_path / "t.1.et.gz").write_bytes(gzip.compress(data[:5]) + gzip.compress(data[5:]))
    first, second = read_chakra(tmp_path)
    assert first.nodes is second.nodes
    (tmp_path / "t.0.et").write_bytes(gzip.compress(data)[:-9])
    with pytest.raises(UserError, match="gzipped trace is cut off"):
        read_chakra(tmp_path)
    (tmp_path / "t.0.et").write_bytes(gzip.compress(b"\0" * (100 << 20)))
    with pytest.raises(UserError, match="grows beyond"):
        read_chakra(tmp_path)


@pytest.mark.parametrize(
    "data,reason",
    [
        (b"", "byte 0: .*the file is empty"),
        (b"\x05\x0a\x03", "byte 0: .*a message of 5 bytes, but the file ends after 2"),
        (b"\xff\xff\xff\xff\x7f", "byte 0: .*a message of 34359738367 bytes"),
        (b"\x80", "byte 0: .*a number is cut off"),
        (b"\x02\x08\x01", "byte 1: .*the first message is not GlobalMetadata"),
        (b"\x00\x02\x0d\x01", "byte 2: .*node 0 of the file: field 1 of 4 bytes reaches 3 bytes beyond"),
        (b"\x00\x02\x0b\x00", "byte 2: .*wire type 3"),
        (b"\x00\x03\x12\x01\xff", "byte 4: .*not UTF-8"),
        (b"\x00\x02\x00\x00", "byte 2: .*field number 0"),
        (b"\x00\x02\x08\x01\x04\x52\x02\x18\x01", "byte 7: .*double value with wire type 0"),
        (b"\x00\x05\x08\xff\xff\xff\xff", "byte 3: .*cut off"),
        (b"\x00\x0d\x08" + b"\xff" * 11 + b"\x01", "byte 3: .*more than 10 bytes"),
        (b"\x00\x04\x28\x01\x52\x05", "byte 4: .*reaches 5 bytes beyond"),
        (b"\x00\x02\x0a\x00", "byte 2: .*field 1 of a node with wire type 2"),
    ],
)
def test_malformed_files_name_file_offset_and_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "bad.0.et"
    path.write_bytes(data)
    with pytest.raises(UserError, match=f"bad.0.et: {reason}"):
        ChakraReader().read(path)


def test_finding_the_files(tmp_path: Path, metadata: Any) -> None:
    for name in ("a.0.et", "a.2.et", "a.1.et", "b.x.et", "notes.txt"):
        _write(tmp_path / name, metadata)
    assert list(find_chakra(tmp_path)) == list(find_chakra(tmp_path / "a")) == [0, 1, 2]
    _write(tmp_path / "b.1.et", metadata)
    with pytest.raises(UserError, match=r"several prefixes.*\(prefixes there: a, b\)"):
        find_chakra(tmp_path)
    with pytest.raises(UserError, match=r"no traces .*c\.RANK\.et \(prefixes there: a, b\)"):
        find_chakra(tmp_path / "c")
    with pytest.raises(UserError, match="no trace of rank 0"):
        read_chakra(tmp_path / "b")
    with pytest.raises(UserError, match="no traces"):
        find_chakra(tmp_path / "nowhere" / "a")
    _write(tmp_path / "a.1.et.gz", metadata)
    with pytest.raises(UserError, match="two traces of rank 1"):
        find_chakra(tmp_path / "a")
    run = tmp_path / "run"
    (run / "chakra").mkdir(parents=True)
    _write(run / "chakra" / "trace.0.et", metadata)
    assert list(find_chakra(run)) == [0]


def _seed_traces() -> list[bytes]:
    metadata = GlobalMetadata(version="0.0.4")
    rich = _node(1, comm_size=1 << 20, comm_type=0)
    rich.attr.add(name="involved_dim").bool_list.values.extend([True, False])
    rich.attr.add(name="shapes").double_list.values.extend([1.5, 2.5])
    rich.attr.add(name="words").string_list.values.extend(["a", "b"])
    rich.attr.add(name="pg_name", string_val="1")
    rich.inputs.values = "[[1, 2], [3]]"
    unpacked = b"\x08\x02\x28\x05\x28\xac\x02\x20\x07\x52\x0e\x0a\x09is_cpu_op\xd8\x01\x01"
    plain = _framed(metadata, rich, _node(2), unpacked)
    return [plain, _framed(metadata, *[_node(i) for i in range(6)]), gzip.compress(plain)]


def _mutated(draw: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at, how = draw.randrange(len(out) or 1), draw.randrange(6)
        if how == 0:
            out[at : at + 1] = bytes([draw.randrange(256)])
        elif how == 1:
            out[at:at] = bytes(draw.randrange(256) for _ in range(draw.choice((1, 2, 8))))
        elif how == 2:
            del out[at : at + draw.choice((1, 3, 20))]
        elif how == 3:
            del out[at:]
        elif how == 4:
            out[at : at + 1] = draw.choice(
                (b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\xff", b"\x00")
            )
        else:
            out[at:at] = out[at : at + draw.randrange(40)]
    return bytes(out)


def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    """20,000 files: either nodes, or a UserError with file and reason; never anything else, and no memory lost."""
    draw, seeds, path = random.Random(7), _seed_traces(), tmp_path / "m.0.et"
    num_refused, before_kib = 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20_000):
        path.write_bytes(_mutated(draw, draw.choice(seeds)))
        try:
            file = ChakraReader().read(path)
            assert all(isinstance(node.attributes, dict) for node in file.nodes)
        except UserError as error:
            num_refused += 1
            assert str(path) in str(error)
    assert 5_000 < num_refused < 19_500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 128 << 10


def test_numbers_of_all_widths(tmp_path: Path, metadata: Any) -> None:
    bits = (0, 1, 127, 128, 16383, 16384, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
    nodes = [Node(id=value, duration_micros=value, data_deps=[value]) for value in bits]
    file = _read(tmp_path / "t.0.et", metadata, *nodes)
    assert file.column("id") == file.column("duration_micros") == list(bits)
    assert [node.data_deps for node in file.nodes] == [(value,) for value in bits]
