// Host time of the driver calls with which the caching allocator gets and returns memory.
//
// Measured on an H200 (driver 580, CUDA 13.0; validation/data/h200/memory.json, by validation/measure/memory_bench.py):
// bare cudaMalloc and cudaFree by size on an idle device. The driver maps physical pages, so time grows with the size.
// cudaMalloc does not wait for kernels (40 us behind one of 10 ms), cudaFree does (10.2 ms). Taken as it is for every
// host; on another virtual machine cudaMalloc took 53 us to 1.1 ms for 2 MiB to 1 GiB, cudaFree 44 to 700 us
// (validation/data/h200x2/host.json). Between the sizes it is interpolated, beyond the last it grows on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "hooks.h"

namespace phantora::memory {

struct DriverCostPoint {
  double bytes, malloc_ns, free_ns;
};

inline constexpr std::array<DriverCostPoint, 8> kDriverCosts{{
    {2.0 * (1 << 20), 35'000, 30'000},
    {64.0 * (1 << 20), 39'000, 50'000},
    {256.0 * (1 << 20), 44'000, 94'000},
    {512.0 * (1 << 20), 73'000, 177'000},
    {1024.0 * (1 << 20), 86'000, 306'000},
    {2048.0 * (1 << 20), 119'000, 561'000},
    {4096.0 * (1 << 20), 192'000, 1'120'000},
    {16384.0 * (1 << 20), 525'000, 6'010'000},
}};
// One page of an expandable segment, mapped (cuMemCreate, cuMemMap, cuMemSetAccess) or unmapped: 13 pages of 20 MiB
// took 525 and 435 us, 205 pages 8.6 and 7.2 ms.
inline constexpr int64_t kMapPageNs = 42'000, kUnmapPageNs = 35'000;

// Nanoseconds of one cudaMalloc or cudaFree of `bytes`.
inline int64_t driver_call_ns(size_t bytes, bool is_malloc) {
  const auto cost = [is_malloc](const DriverCostPoint& point) { return is_malloc ? point.malloc_ns : point.free_ns; };
  const double size = static_cast<double>(bytes);
  if (size <= kDriverCosts.front().bytes) return static_cast<int64_t>(cost(kDriverCosts.front()));
  size_t upper = 1;
  while (upper + 1 < kDriverCosts.size() && size > kDriverCosts[upper].bytes) ++upper;
  const DriverCostPoint &low = kDriverCosts[upper - 1], &high = kDriverCosts[upper];
  const double share = (size - low.bytes) / (high.bytes - low.bytes);
  return static_cast<int64_t>(cost(low) + share * (cost(high) - cost(low)));
}

// Nanoseconds of what `call` stands for. Expandable segments make or return one physical block for each page.
inline int64_t driver_call_ns(const DeviceCall& call) {
  const bool takes = call.kind == DeviceCall::kMalloc || call.kind == DeviceCall::kMap;
  if (call.kind == DeviceCall::kMalloc || call.kind == DeviceCall::kFree) return driver_call_ns(call.bytes, takes);
  const size_t num_pages = (call.bytes + call.page_bytes - 1) / call.page_bytes;
  return static_cast<int64_t>(num_pages) * (takes ? kMapPageNs : kUnmapPageNs);
}

}  // namespace phantora::memory
