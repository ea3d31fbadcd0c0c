"""Documents item by item: the same values as json.loads, exact times, and errors that say where."""

from __future__ import annotations

import gzip
import io
import json

import pytest

from phantora.errors import UserError
from phantora.importers import json_stream
from phantora.importers.json_stream import LIST_BEGINS, JsonStream, clean_text, microseconds_as_ns, whole_number


def _read(text: str | bytes, lists: tuple[str, ...] = ("items",)) -> list[tuple[str, object]]:
    data = text.encode() if isinstance(text, str) else text
    return list(JsonStream(io.BytesIO(data), "x.json").members(lists))


def test_items_of_named_lists_come_one_by_one() -> None:
    found = _read('{"a": 1, "items": [ {"b": [1, 2]}, 3 ] , "c": {"items": [4]}}')
    assert found == [("a", 1), ("items", LIST_BEGINS), ("items", {"b": [1, 2]}), ("items", 3), ("c", {"items": [4]})]


def test_a_document_may_be_a_list_and_lists_may_be_empty() -> None:
    assert _read(" [1, {}] ") == [("", LIST_BEGINS), ("", 1), ("", {})]
    assert _read('{"items": []}') == [("items", LIST_BEGINS)]
    assert _read("{}") == []


def test_chunks_may_end_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"n": 123456, "items": [{"k": "v\u00e9" * 5, "x": [True, None, -12]}] * 7, "z": "end"}
    expected = _read(json.dumps(value, ensure_ascii=False))
    for size in range(1, 40):
        monkeypatch.setattr(json_stream, "_CHUNK_BYTES", size)
        assert _read(json.dumps(value, ensure_ascii=False)) == expected


@pytest.mark.parametrize(
    "text,place,reason",
    [
        ('{"items": [{"a": 1},\n{"a" 1}]}', "x.json:2: ", "delimiter"),
        ('{"items": [{"a": 1}\n\n{"a": 1}]}', "x.json:3: not valid JSON at character 21", ", or ] must stand here"),
        ('{"items": [{"a": 1}', "x.json:1: ", "cut off"),
        ('{"items": [{"a": "bcd', "x.json:1: ", "cut off"),
        ('{"a": 1}}', "x.json:1: not valid JSON at character 8", "goes on"),
        ("", "x.json:1: ", "empty"),
        ("hello", "x.json:1: ", "must begin here"),
        ('{"a": ' + "9" * 6000 + "}", "x.json:1: ", "digits"),
        ("[" * 100_000, "x.json:1: ", "nested too deeply"),
        ('{"items": [' + '{"a":' * 100_000, "x.json:1: ", "nested too deeply"),
    ],
)
def test_malformed_text_is_an_error_with_its_place(text: str, place: str, reason: str) -> None:
    with pytest.raises(UserError) as error:
        _read(text)
    assert str(error.value).startswith(place) and reason in str(error.value)


def test_text_that_is_not_utf8() -> None:
    with pytest.raises(UserError, match="not UTF-8 text near byte 7"):
        _read(b'{"a": "\xff"}')


def test_a_gzip_file_that_is_cut_off() -> None:
    packed = gzip.compress(json.dumps({"items": list(range(100_000))}).encode())
    stream = gzip.GzipFile(fileobj=io.BytesIO(packed[: len(packed) // 2]))
    with pytest.raises(UserError, match="x.json: cannot be read after byte"):
        list(JsonStream(stream, "x.json").members(("items",)))  # type: ignore[arg-type]


def test_an_item_without_end_is_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "_MAX_ITEM_CHARS", 1 << 16)
    monkeypatch.setattr(json_stream, "_CHUNK_BYTES", 1 << 12)
    with pytest.raises(UserError, match="one item of more than"):
        _read('{"items": ["' + "x" * (1 << 20))


@pytest.mark.parametrize(
    "value,ns",
    [
        (5, 5000), ("1694128201435418.123", 1694128201435418123), ("5106154014063.354", 5106154014063354), ("0.1", 100),
        ("-1.5", -1500), ("1.23456", 1234), ("2e3", 2_000_000), (True, None), (None, None), ("abc", None),
        ("1.2.3", None),
        ("nan", None), ("inf", None), ([1], None), (10**30, None), ("1e300", None), ("9" * 50, None),
    ],
)  # fmt: skip
def test_microseconds_keep_every_nanosecond(value: object, ns: int | None) -> None:
    assert microseconds_as_ns(value) == ns


def test_whole_numbers_and_texts() -> None:
    assert [whole_number(v) for v in (3, "3", "-3", "", "-", "3.0", True, None, [], "\u0663")] == [3, 3, -3] + [
        None
    ] * 7
    assert whole_number(5, 6) is None and whole_number(7, 0, 6) is None
    assert clean_text("a\ud800b") == "a?b" and clean_text("é") == "é" and clean_text(4) == "4"
