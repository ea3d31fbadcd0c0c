"""Reads a Perfetto trace as Perfetto does: numbers to texts, BEGIN and END to slices, and fails where it drops data."""

from dataclasses import dataclass, field

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


@dataclass
class Slice:
    name: str
    category: str
    track: int
    begin_ns: int
    end_ns: int = -1
    depth: int = 0
    args: dict = field(default_factory=dict)
    flows: list = field(default_factory=list)
    ending_flows: list = field(default_factory=list)


@dataclass
class Parsed:
    slices: list[Slice]
    tracks: dict  # uuid -> TrackDescriptor
    counters: dict  # uuid -> [(ns, value)]
    instants: list[Slice]

    def path(self, uuid):
        """'rank 0 (host 0, GPU 0)/stream 0 (default)'."""
        track = self.tracks[uuid]
        if track.HasField("process"):
            return track.process.process_name
        if track.HasField("thread"):
            process = next(t for t in self.tracks.values() if t.process.pid == track.thread.pid)
            return f"{process.process.process_name}/{track.thread.thread_name}"
        return (self.path(track.parent_uuid) + "/" if track.parent_uuid else "") + track.name

    def on(self, path):
        return [s for s in self.slices if self.path(s.track) == path]


def parse(path) -> Parsed:
    trace = Trace.FromString(path.read_bytes())
    texts, tracks, events = {}, {}, []
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        data = packet.interned_data
        for kind, entries in (
            ("name", data.event_names),
            ("category", data.event_categories),
            ("arg", data.debug_annotation_names),
        ):
            texts.update({(kind, entry.iid): entry.name for entry in entries})
        texts.update({("string", entry.iid): entry.str.decode() for entry in data.debug_annotation_string_values})
        if packet.HasField("track_descriptor"):
            assert packet.track_descriptor.uuid not in tracks
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            events.append(packet)
    assert trace.packet[0].sequence_flags == 1
    result, stacks = Parsed([], tracks, {}, []), {}
    for packet in sorted(events, key=lambda p: p.timestamp):  # stable, as Perfetto's sorter
        _event(packet, texts, result, stacks)
    assert not any(stacks.values()), "slices that never end"
    return result


def _event(packet, texts, result, stacks):
    event, stack = packet.track_event, stacks.setdefault(packet.track_event.track_uuid, [])
    assert event.track_uuid in result.tracks
    if event.type == TrackEvent.TYPE_COUNTER:
        result.counters.setdefault(event.track_uuid, []).append(
            (packet.timestamp, event.counter_value or event.double_counter_value)
        )
        return
    if event.type == TrackEvent.TYPE_SLICE_END:
        stack.pop().end_ns = packet.timestamp
        return
    assert packet.sequence_flags == 2
    made = Slice(
        texts["name", event.name_iid], texts["category", event.category_iids[0]], event.track_uuid, packet.timestamp
    )
    made.depth, made.flows, made.ending_flows = len(stack), list(event.flow_ids), list(event.terminating_flow_ids)
    for annotation in event.debug_annotations:
        case = annotation.WhichOneof("value")
        value = getattr(annotation, case)
        made.args[texts["arg", annotation.name_iid]] = texts["string", value] if case == "string_value_iid" else value
    if event.type == TrackEvent.TYPE_INSTANT:
        result.instants.append(made)
        return
    assert event.type == TrackEvent.TYPE_SLICE_BEGIN
    stack.append(made)
    result.slices.append(made)
