// The Unix socket to the engine. Frames are those of phantora/engine/protocol.py: u32 little-endian length of
// (type + payload), u8 type, payload.
//
// Order on the wire = order of calls. Lock order: the transport's mutex before the device's (device.h), and neither is
// ever held while waiting for the GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace phantora::native::transport {

void connect(int fd); // a blocking stream socket, stays owned by the caller; -1: disconnect
bool is_connected();
bool is_broken(); // the engine closed the connection

// Sends what has been recorded. Returns false when the connection is broken.
bool flush();
// The same, then one more frame.
bool send_after_records(uint8_t type, std::string_view payload);
// One frame that overtakes pending records (definitions precede the first record that uses them).
bool send_before_records(uint8_t type, std::string_view payload);

void lock_for_fork();
void unlock_after_fork();
void forget_connection(); // in a forked child: the connection stays the parent's

} // namespace phantora::native::transport
