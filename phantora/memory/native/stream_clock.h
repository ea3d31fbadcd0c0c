// What the allocator asks of the streams: when is work that was queued before now finished?
#pragma once

#include <cstdint>

namespace phantora::memory {

struct StreamClock {
  virtual ~StreamClock() = default;
  virtual int64_t record(int64_t stream) = 0;    // ticket of an event recorded now on `stream`
  virtual bool done(int64_t ticket) = 0;         // cudaEventQuery; asked again until true
  virtual void synchronize(int64_t ticket) = 0;  // cudaEventSynchronize
  // done() said no although it may be over: only somebody else knows (CachingAllocator::undecided_events).
  virtual bool is_undecided(int64_t) { return false; }
};

}  // namespace phantora::memory
