// Where cudaMalloc puts segments. No memory is behind the addresses, but their order decides between equal free blocks.
//
// Inferred from the addresses in an allocation log of a training step on an H200 (driver 580, CUDA 13.0): the driver
// reserves ranges that are multiples of 32 MiB, each below the last one; a segment goes into the newest range with a
// hole for it, at the hole's start (so 2 MiB and 12 MiB segments fill the ends of ranges made for 48 or 148 MiB);
// ranges stay when they are empty. What else lives in the address space of a real process (libraries, pinned memory) is
// not modelled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

#include "config.h"

namespace phantora::memory {

class AddressSpace {
 public:
  static constexpr size_t kRange = 32 * kMiB;

  // Addresses of a device lie in [(device + 1) << 54, (device + 2) << 54).
  explicit AddressSpace(int device) : lowest_(((static_cast<uint64_t>(device) + 1) << 54) + (uint64_t{1} << 53)) {}

  uint64_t take(size_t bytes) {
    bytes = round_up(bytes, kRoundLarge);
    for (auto& [start, range] : ranges_) {  // newest first: the lowest
      if (range.free_bytes < bytes) continue;
      for (auto hole = range.holes.begin(); hole != range.holes.end(); ++hole)
        if (hole->second >= bytes) return cut(range, hole, bytes);
    }
    return new_range(bytes);
  }

  void give_back(uint64_t address, size_t bytes) {
    bytes = round_up(bytes, kRoundLarge);
    const auto after = ranges_.upper_bound(address);
    if (after == ranges_.begin()) return;  // placed by the caller, not by us
    Range& range = std::prev(after)->second;
    if (address >= range.end) return;
    range.free_bytes += bytes;
    auto hole = range.holes.emplace(address, bytes).first;
    if (const auto next = std::next(hole); next != range.holes.end() && next->first == address + bytes) {
      hole->second += next->second;
      range.holes.erase(next);
    }
    if (hole == range.holes.begin()) return;
    if (const auto before = std::prev(hole); before->first + before->second == address) {
      before->second += hole->second;
      range.holes.erase(hole);
    }
  }

 private:
  struct Range {
    uint64_t end;
    size_t free_bytes;
    std::map<uint64_t, size_t> holes;  // start, bytes
  };

  static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

  uint64_t new_range(size_t bytes) {
    const size_t size = round_up(bytes, kRange);
    lowest_ -= size;
    Range& range = ranges_[lowest_];
    range = {lowest_ + size, size, {{lowest_, size}}};
    return cut(range, range.holes.begin(), bytes);
  }
  static uint64_t cut(Range& range, std::map<uint64_t, size_t>::iterator hole, size_t bytes) {
    const auto [address, size] = *hole;
    range.holes.erase(hole);
    range.free_bytes -= bytes;
    if (size > bytes) range.holes.emplace(address + bytes, size - bytes);
    return address;
  }

  uint64_t lowest_;
  std::map<uint64_t, Range> ranges_;
};

}  // namespace phantora::memory
