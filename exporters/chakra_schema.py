"""The messages of a Chakra trace, built here so that no package is needed to write or read one.

Source: mlcommons/chakra, schema/protobuf/et_def.proto, schema version 0.0.4 (package ChakraProtoMsg). The descriptors
live in a pool of their own: in protobuf's default pool they would clash with an installed mlc-chakra.
"""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

SCHEMA_VERSION = "0.0.4"
_PACKAGE = "ChakraProtoMsg"

# NodeType
COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE, COMM_COLL_NODE = 4, 5, 6, 7
_NODE_TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
    "COMM_RECV_NODE", "COMM_COLL_NODE",
)  # fmt: skip
# CollectiveCommType
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 6, 7
_COLLECTIVES = (
    "ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL", "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK", "BARRIER",
)  # fmt: skip
# The cases of AttributeProto.value: <case>_val and <case>_list, numbered from 3 in this order.
_CASES = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
_FIELDS: dict[str, tuple[tuple[str, int, str, bool], ...]] = {  # message -> (name, number, type, repeated)
    "GlobalMetadata": (("version", 1, "string", False), ("attr", 2, "AttributeProto", True)),
    "Node": (
        ("id", 1, "uint64", False), ("name", 2, "string", False), ("type", 3, "NodeType", False),
        ("ctrl_deps", 4, "uint64", True), ("data_deps", 5, "uint64", True), ("start_time_micros", 6, "uint64", False),
        ("duration_micros", 7, "uint64", False), ("inputs", 8, "IOInfo", False), ("outputs", 9, "IOInfo", False),
        ("attr", 10, "AttributeProto", True),
    ),
    "IOInfo": (("values", 1, "string", False), ("shapes", 2, "string", False), ("types", 3, "string", False)),
}  # fmt: skip


def _add_field(
    message: DescriptorProto, name: str, number: int, kind: str, repeated: bool = False
) -> FieldDescriptorProto:
    label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if kind in _CASES:
        field.type = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")
    else:
        field.type_name = f".{_PACKAGE}.{kind}"
        field.type = FieldDescriptorProto.TYPE_ENUM if kind == "NodeType" else FieldDescriptorProto.TYPE_MESSAGE
    return field


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="phantora/chakra.proto", package=_PACKAGE, syntax="proto3")
    for name, values in (("NodeType", _NODE_TYPES), ("CollectiveCommType", _COLLECTIVES)):
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    attribute = file.message_type.add(name="AttributeProto")
    attribute.oneof_decl.add(name="value")
    _add_field(attribute, "name", 1, "string")
    _add_field(attribute, "doc_string", 2, "string")
    for i, case in enumerate(_CASES):
        list_name = f"{case.capitalize()}List"
        _add_field(file.message_type.add(name=list_name), "values", 1, case, repeated=True)
        for number, suffix, kind in ((3 + 2 * i, "val", case), (4 + 2 * i, "list", list_name)):
            _add_field(attribute, f"{case}_{suffix}", number, kind).oneof_index = 0
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _add_field(message, *field)
    return file


_POOL = DescriptorPool()
_POOL.Add(_file())


def _message(name: str) -> type:
    return GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


AttributeProto = _message("AttributeProto")
GlobalMetadata = _message("GlobalMetadata")
Node = _message("Node")
