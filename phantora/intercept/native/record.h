// One fixed-size record per thing that the host asked of a simulated device.
//
// The layout and the kinds are those of phantora/engine/protocol.py (RECORD, Kind): records travel to the engine as
// they lie in memory.
#pragma once

#include <cstdint>

namespace phantora::native {

enum class Kind : int32_t {
  kOp = 0,            // a: signature, b: stream
  kAlloc = 1,         // a: address, b: bytes allocated after, c: bytes reserved after
  kFree = 2,          // a: address, b: bytes allocated after, c: bytes reserved after
  kEventRecord = 3,   // a: event, b: stream
  kEventWait = 4,     // a: event, b: stream
  kEventDestroy = 5,  // a: event
  kRecordStream = 6,  // a: address, b: stream
  kHostWait = 7,      // a: begin_ns (host_ns is the end), b: what (WaitedFor), c: stream or event
  kCollective = 16,   // a: collective call, b: stream
  kMark = 17,         // a: string, b: +1 push, -1 pop, 0 instant
  // Never written as records: host calls that have a cost (set_call_cost_ns) and no effect on the device.
  kQuery = 32,
  kGraphLaunch = 33,
  kDeviceMalloc = 34, // cudaMalloc, cuMemMap: the caching allocator takes a segment
  kDeviceFree = 35,   // cudaFree, cuMemUnmap
  // Units of host time beside calls (docs/host_time.md). phantora/intercept/host_time.py knows the numbers too.
  kView = 40,         // a view of a simulated tensor
  kGradient = 41,     // detach(): autograd does it when it keeps a gradient
  kModule = 42,       // a call of a torch.nn.Module
  kParameter = 43,    // a parameter in one step of an optimizer
  kSubclass = 44,     // a launch or a view inside __torch_dispatch__
  kCpuRandom = 45,    // 1024 random numbers made by the CPU
  kPermille = 47,     // a thousandth of a plain launch from Python (phantora/intercept/compiled/runner.py)
  kPlacement = 46,    // a tensor becomes a DTensor, a DTensor a tensor, or its placements change
};
constexpr int kNumKinds = 64;

enum class WaitedFor : int64_t { kStream = 0, kEvent = 1, kDevice = 2 };

struct Record {
  int32_t kind;
  int16_t device;
  int16_t thread;  // clock domain of the calling thread
  int64_t host_ns; // clock of that domain after the call's own cost
  int64_t a, b, c;
};
static_assert(sizeof(Record) == 40, "phantora/engine/protocol.py reads 40 bytes");

} // namespace phantora::native
