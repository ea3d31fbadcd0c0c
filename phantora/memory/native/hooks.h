// What the allocator tells its owner: actions for traces, driver calls for their cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "statistics.h"

namespace phantora::memory {

struct DeviceMemory {
  size_t total_bytes = size_t{80} << 30;  // cudaDeviceProp::totalGlobalMem
  size_t context_bytes = 0;               // what a CUDA context (and its modules) takes before the first allocation
};

struct TraceEvent {
  enum Action {
    kAlloc,
    kFreeRequested,
    kFreeCompleted,
    kSegmentAlloc,
    kSegmentFree,
    kSegmentMap,
    kSegmentUnmap,
    kSnapshot,
    kOom
  };
  Action action;
  int device;
  uint64_t address;  // kOom: free bytes of the device
  size_t bytes;      // kAlloc, kFree*: as requested; kOom: as rounded
  int64_t stream;
  PoolId pool;
};

// A call of the CUDA driver that real hardware takes time for.
struct DeviceCall {
  enum Kind { kMalloc, kFree, kMap, kUnmap };
  Kind kind;
  int device;
  uint64_t address;
  size_t bytes;
  size_t page_bytes;  // kMap, kUnmap: one driver call for each page; else `bytes`
  int64_t stream;
  bool ok;  // false: out of memory
};

struct Hooks {
  std::function<void(const TraceEvent&)> trace;
  std::function<void(const DeviceCall&)> device_call;
  std::function<uint64_t(size_t bytes)> place;
};

}  // namespace phantora::memory
