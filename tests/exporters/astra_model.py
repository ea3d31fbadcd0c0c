"""ASTRA-sim's rules of execution (Workload.cc) in fifty lines, with given times for communication instead of a network.

Per NPU one kernel and one collective or send at a time, recvs without limit; ready nodes start in ascending id.
"""

import heapq

from phantora.exporters import chakra_schema as schema
from phantora.exporters.chakra import attributes, read_chakra


class Npu:
    def __init__(self, path):
        self.nodes = {node.id: node for node in read_chakra(path)}
        self.attrs = {i: attributes(node) for i, node in self.nodes.items()}
        self.missing = {i: set(node.data_deps) for i, node in self.nodes.items()}
        self.ready = sorted(i for i, deps in self.missing.items() if not deps)
        self.children = {}
        for i, node in self.nodes.items():
            for parent in node.data_deps:
                self.children.setdefault(parent, []).append(i)
        self.busy = {"comp": False, "comm": False}
        self.finished_ns = -1
        self.num_done = 0

    def startable(self):
        for i in list(self.ready):
            unit = {schema.COMP_NODE: "comp", schema.COMM_RECV_NODE: None}.get(self.nodes[i].type, "comm")
            if unit is None or not self.busy[unit]:
                if unit:
                    self.busy[unit] = True
                self.ready.remove(i)
                yield i, unit

    def finish(self, i, unit, now):
        if unit:
            self.busy[unit] = False
        self.num_done += 1
        self.finished_ns = now
        for child in self.children.get(i, ()):
            self.missing[child].discard(i)
            if not self.missing[child]:
                self.ready.append(child)
        self.ready.sort()


def key_of(attrs):
    """What belongs together: the members of a collective, the two ends of a message."""
    return attrs["collective"], attrs.get("comm_src"), attrs.get("comm_dst")


def finish_times_ns(files):
    """When each NPU is done; a collective takes the time it took in the run, from its last member's start on."""
    npus = [Npu(path) for path in files]
    members = {}
    for npu in npus:
        for attrs in npu.attrs.values():
            if "comm_size" in attrs:
                members[key_of(attrs)] = members.get(key_of(attrs), 0) + 1
    events, waiting, sequence = [], {}, 0

    def start_all(rank, now):
        nonlocal sequence
        for i, unit in npus[rank].startable():
            attrs, node = npus[rank].attrs[i], npus[rank].nodes[i]
            if node.type == schema.COMP_NODE:
                ends = [(now + max(node.duration_micros * 1000, 1), rank, i, unit)]
            else:
                key = key_of(attrs)
                there = waiting.setdefault(key, [])
                there.append((rank, i, unit))
                took = attrs["collective_end_ns"] - attrs["collective_start_ns"]
                ends = [(now + took, *entry) for entry in there] if len(there) == members[key] else []
                if node.type == schema.COMM_SEND_NODE and not ends:  # a send does not wait for its recv
                    ends = [(now + took, *there.pop())]
                    members[key] -= 1
            for end in ends:
                sequence += 1
                heapq.heappush(events, (end[0], sequence, *end[1:]))

    for rank in range(len(npus)):
        start_all(rank, 0)
    while events:
        now, _, rank, i, unit = heapq.heappop(events)
        npus[rank].finish(i, unit, now)
        start_all(rank, now)
    assert all(npu.num_done == len(npu.nodes) for npu in npus), "deadlock"
    return [npu.finished_ns for npu in npus]
