// The caching allocator as a shared library with a C interface, for tests and tools (phantora/memory/emulator.py).
//
// A handle owns one allocator, a clock that the caller moves, and the trace. Functions that can fail return a negative
// status or null; phantora_allocator_error() tells why.
#include "caching_allocator.h"

#include <memory>

namespace {

using namespace phantora::memory;

// Events are done once the caller has said that their stream is finished, or something waited for them.
class ManualClock final : public StreamClock {
 public:
  int64_t record(int64_t stream) override {
    streams_.push_back(stream);
    done_.push_back(false);
    return static_cast<int64_t>(done_.size()) - 1;
  }
  bool done(int64_t ticket) override { return done_[static_cast<size_t>(ticket)]; }
  void synchronize(int64_t ticket) override { done_[static_cast<size_t>(ticket)] = true; }
  void finish(int64_t stream) {
    for (size_t i = 0; i < done_.size(); ++i)
      if (streams_[i] == stream) done_[i] = true;
  }

 private:
  std::vector<int64_t> streams_;
  std::vector<bool> done_;
};

struct TraceRow {  // mirrored by emulator.TraceRow
  int64_t action, address, bytes, stream;
};

struct Handle {
  ManualClock clock;
  std::deque<uint64_t> places;
  bool tracing = false;
  std::vector<TraceRow> trace;
  std::string text, error;
  std::unique_ptr<CachingAllocator> allocator;

  Hooks hooks() {
    Hooks hooks;
    hooks.trace = [this](const TraceEvent& event) {
      if (tracing)
        trace.push_back(
            {event.action, static_cast<int64_t>(event.address), static_cast<int64_t>(event.bytes), event.stream});
    };
    hooks.place = [this](size_t) {
      if (places.empty()) return uint64_t{0};
      const uint64_t address = places.front();
      places.pop_front();
      return address;
    };
    return hooks;
  }
};

std::string creation_error;

Handle& of(void* handle) { return *static_cast<Handle*>(handle); }

template <typename F>
int guarded(void* handle, F f) {
  try {
    f(*of(handle).allocator);
    return 0;
  } catch (const std::exception& e) {
    of(handle).error = e.what();
    return -1;
  }
}

std::string join(const std::vector<std::string>& parts) {
  std::string text = "[";
  for (size_t i = 0; i < parts.size(); ++i) text += (i ? "," : "") + parts[i];
  return text + "]";
}

std::string number(const char* name, uint64_t value) {
  return std::string("\"") + name + "\":" + std::to_string(value);
}

// JSON with the keys of torch.cuda.memory_snapshot.
std::string to_json(const Segment& segment) {
  std::vector<std::string> blocks;
  for (const Segment::Part& part : segment.blocks)
    blocks.push_back("{" + number("address", part.address) + "," + number("size", part.size) + "," +
                     number("requested_size", part.requested_size) + ",\"state\":\"" + part.state() + "\"}");
  return "{" + number("device", static_cast<uint64_t>(segment.device)) + "," + number("address", segment.address) +
         "," + number("total_size", segment.total_size) + "," + number("allocated_size", segment.allocated_size) + "," +
         number("active_size", segment.active_size) + "," + number("requested_size", segment.requested_size) +
         ",\"stream\":" + std::to_string(segment.stream) + ",\"segment_type\":\"" +
         (segment.is_large ? "large" : "small") + "\",\"segment_pool_id\":[" + std::to_string(segment.pool.first) +
         "," + std::to_string(segment.pool.second) +
         "],\"is_expandable\":" + (segment.is_expandable ? "true" : "false") + ",\"blocks\":" + join(blocks) + "}";
}

}  // namespace

extern "C" {

void* phantora_allocator_new(int device, const char* settings, uint64_t total_bytes, uint64_t context_bytes) {
  try {
    auto handle = std::make_unique<Handle>();
    handle->allocator = std::make_unique<CachingAllocator>(
        device, parse_config(settings), DeviceMemory{total_bytes, context_bytes}, &handle->clock, handle->hooks());
    return handle.release();
  } catch (const std::exception& e) {
    creation_error = e.what();
    return nullptr;
  }
}
void phantora_allocator_delete(void* handle) { delete static_cast<Handle*>(handle); }
const char* phantora_allocator_error(void* handle) { return (handle ? of(handle).error : creation_error).c_str(); }

// 0: done, 1: out of memory (the error text is torch's message), -1: error.
int phantora_allocator_malloc(void* handle, uint64_t bytes, int64_t stream, uint64_t* address) {
  Result result;
  if (guarded(handle, [&](CachingAllocator& a) { result = a.allocate(bytes, stream); })) return -1;
  *address = result.address;
  if (result.ok) return 0;
  of(handle).error = oom_message(result.oom);
  return 1;
}
int phantora_allocator_free(void* handle, uint64_t address) {
  return guarded(handle, [&](CachingAllocator& a) { a.free(address); });
}
int phantora_allocator_record_stream(void* handle, uint64_t address, int64_t stream) {
  return guarded(handle, [&](CachingAllocator& a) { a.record_stream(address, stream); });
}
void phantora_allocator_finish_stream(void* handle, int64_t stream) { of(handle).clock.finish(stream); }
int phantora_allocator_empty_cache(void* handle, uint64_t first, uint64_t second) {
  return guarded(handle, [&](CachingAllocator& a) { a.empty_cache({first, second}); });
}
int phantora_allocator_set_fraction(void* handle, double fraction) {
  return guarded(handle, [&](CachingAllocator& a) { a.set_memory_fraction(fraction); });
}
int phantora_allocator_apply(void* handle, const char* settings) {
  return guarded(handle, [&](CachingAllocator& a) { a.apply_settings(settings); });
}
void phantora_allocator_set_other_bytes(void* handle, uint64_t bytes) { of(handle).allocator->set_other_bytes(bytes); }
uint64_t phantora_allocator_free_bytes(void* handle) { return of(handle).allocator->memory_info().first; }
uint64_t phantora_allocator_block_size(void* handle, uint64_t address) {
  return of(handle).allocator->block_size(address);
}
int phantora_allocator_segment_of(void* handle, uint64_t address, uint64_t* base, uint64_t* bytes) {
  return guarded(handle, [&](CachingAllocator& a) { std::tie(*base, *bytes) = a.segment_of(address); });
}
void phantora_allocator_place(void* handle, uint64_t address) { of(handle).places.push_back(address); }
void phantora_allocator_reset_peak(void* handle) { of(handle).allocator->reset_peak(); }
void phantora_allocator_reset_accumulated(void* handle) { of(handle).allocator->reset_accumulated(); }

// action 0: create, 1: begin (stream -1: every stream), 2: end, 3: release, 4: use on OOM, 5: never split, 6: create
// with an allocator of its own
int phantora_allocator_pool(void* handle, int action, uint64_t first, uint64_t second, int64_t stream) {
  const PoolId id{first, second};
  return guarded(handle, [&](CachingAllocator& a) {
    switch (action) {
      case 0:
        return a.create_pool(id);
      case 1:
        return a.begin_allocate_to_pool(id, [stream](int64_t s) { return stream < 0 || s == stream; });
      case 2:
        return a.end_allocate_to_pool(id);
      case 3:
        return a.release_pool(id);
      case 4:
        return a.set_use_on_oom(id, true);
      case 5:
        return a.set_no_split(id);
      default:
        return a.create_pool(id, true);
    }
  });
}

const char* phantora_allocator_stats(void* handle) {
  std::string& text = of(handle).text;
  text.clear();
  for (const auto& [name, value] : of(handle).allocator->stats().flatten())
    text += (text.empty() ? "{\"" : ",\"") + name + "\":" + std::to_string(value);
  return (text += "}").c_str();
}
const char* phantora_allocator_snapshot(void* handle, uint64_t first, uint64_t second) {
  std::vector<std::string> segments;
  for (const Segment& segment : of(handle).allocator->snapshot({first, second})) segments.push_back(to_json(segment));
  return (of(handle).text = join(segments)).c_str();
}

void phantora_allocator_set_tracing(void* handle, int on) { of(handle).tracing = on != 0; }
uint64_t phantora_allocator_trace(void* handle, const TraceRow** rows) {
  *rows = of(handle).trace.data();
  return of(handle).trace.size();
}
void phantora_allocator_clear_trace(void* handle) { of(handle).trace.clear(); }

// Parses settings as torch would: null when they are right, else the error.
const char* phantora_allocator_check_settings(const char* settings) {
  try {
    parse_config(settings);
    return nullptr;
  } catch (const std::exception& e) {
    creation_error = e.what();
    return creation_error.c_str();
  }
}
uint64_t phantora_allocator_format_size(uint64_t bytes, char* text, uint64_t capacity) {
  const std::string formatted = format_size(bytes);
  formatted.copy(text, std::min<size_t>(formatted.size(), capacity));
  return formatted.size();
}

}  // extern "C"
