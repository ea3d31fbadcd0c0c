#include "device_allocator.h"

#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include <c10/util/Exception.h>

#include <torch/csrc/Exceptions.h>

#include "../../memory/native/caching_allocator.h"
#include "../../memory/native/driver_cost.h"
#include "current.h"
#include "device.h"
#include "memory_history.h"
#include "python_support.h"

namespace phantora::native {
namespace {

using memory::CachingAllocator;

// One mutex for the allocators of all devices. It is never held while Python runs: a thread with the GIL may be waiting
// for it to free a tensor.
std::mutex& allocator_mutex = *new std::mutex;
using Lock = std::lock_guard<std::mutex>;

// What an allocator asks of the streams, answered by the local timeline. Waits that only the engine can answer are put
// off until the mutex is free again: the allocator goes on as if they were over, because what it does next does not
// depend on how long they took.
class LocalStreamClock final : public memory::StreamClock {
 public:
  explicit LocalStreamClock(int device) : device_(device) {}
  int64_t record(int64_t stream) override { return device::record_event_only(device_, stream); }
  bool done(int64_t event) override {
    if (!device::is_known_done(event)) return false;
    device::destroy_event_only(device_, event);
    return true;
  }
  void synchronize(int64_t event) override { put_off.push_back(event); }
  bool is_undecided(int64_t event) override { return device::must_ask_whether_done(event); }

  std::vector<int64_t> put_off;

 private:
  const int device_;
};

struct SimulatedMemory {
  SimulatedMemory(int index, memory::DeviceMemory capacity)
      : clock(index), allocator(index, memory::config_from_environment(), capacity, &clock, hooks()) {}

  memory::Hooks hooks() {
    memory::Hooks hooks;
    hooks.device_call = [this](const memory::DeviceCall& call) {
      using Kind = memory::DeviceCall::Kind;
      driver_ns += memory::driver_call_ns(call);
      returns_memory = returns_memory || call.kind == Kind::kFree || call.kind == Kind::kUnmap;
    };
    hooks.trace = [this](const memory::TraceEvent& event) { history.add(event, stack, clock::last_ns()); };
    return hooks;
  }

  LocalStreamClock clock;
  CachingAllocator allocator;
  memory_history::History history;
  memory_history::StackId stack = 0; // of the call that is being served
  int64_t driver_ns = 0; // of driver calls not yet paid for
  bool returns_memory = false; // one of them gives memory back, for which the device has to be idle
};

auto& devices = *new std::vector<std::unique_ptr<SimulatedMemory>>;
memory::DeviceMemory capacity;
std::optional<size_t> limit;

SimulatedMemory& device_at(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < num_devices(), "CUDA error: invalid device ordinal");
  if (devices.size() <= size_t(index)) devices.resize(size_t(index) + 1);
  auto& device = devices[size_t(index)];
  if (!device) {
    device = std::make_unique<SimulatedMemory>(index, capacity);
    if (limit) device->allocator.set_memory_limit(limit);
  }
  return *device;
}

// The host's part of what an allocator did: waits for events, then driver calls. Taken with the mutex, paid without it
// where it has to wait. cudaFree waits for all work of the device (CUDA programming guide, implicit synchronization).
struct HostWork {
  int device;
  std::vector<int64_t> events;
  int64_t driver_ns;
  bool waits_for_device;

  explicit HostWork(int index, SimulatedMemory& memory)
      : device(index), events(std::exchange(memory.clock.put_off, {})), driver_ns(std::exchange(memory.driver_ns, 0)),
        waits_for_device(std::exchange(memory.returns_memory, false)) {}

  bool waits() const { return waits_for_device || !events.empty(); }
  void pay() const {
    for (const int64_t event : events) {
      device::synchronize_event(device, event);
      device::destroy_event(device, event);
    }
    if (waits_for_device) device::synchronize_device(device);
    if (driver_ns && device::is_recording()) clock::advance_ns(driver_ns);
  }
};

struct Totals {
  int64_t allocated_bytes, reserved_bytes;
  explicit Totals(const CachingAllocator& allocator)
      : allocated_bytes(allocator.stats().allocated_bytes.all.current),
        reserved_bytes(allocator.stats().reserved_bytes.all.current) {}
};

void free_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  const auto stack = memory_history::take_stack(memory_history::kAll);
  {
    Lock lock(allocator_mutex);
    SimulatedMemory& memory = device_at(block->device);
    CachingAllocator& allocator = memory.allocator;
    memory.stack = stack;
    allocator.free(block->address);
    const Totals totals(allocator);
    device::emit_only(Kind::kFree, block->device, int64_t(block->address), totals.allocated_bytes,
                      totals.reserved_bytes);
  }
  device::flush_if_full();
}

void free_nothing(void*) {}

// Learns up to where one stream's events (in order) are over by now, with as few questions as it takes. A real
// allocator asks at every allocation; here only when memory would have to grow otherwise, because each answer makes the
// other ranks get to this one's clock first.
void ask_how_far(const std::vector<int64_t>& events) {
  if (device::ask_whether_done(events.back())) return;
  size_t done = 0, open = events.size() - 1; // before `done` all are over, from `open` on none is
  while (done < open) {
    const size_t middle = done + (open - done) / 2;
    if (device::ask_whether_done(events[middle]))
      done = middle + 1;
    else
      open = middle;
  }
}

auto& observers = *new std::vector<PyObject*>; // torch._C._cuda_attach_out_of_memory_observer; with the GIL

void tell_observers(const memory::Oom& oom) {
  if (observers.empty() || interpreter_is_finalizing()) return;
  const WithGil gil;
  for (PyObject* observer : observers) {
    const auto number = [](size_t value) { return static_cast<long long>(value); };
    Reference result(PyObject_CallFunction(observer, "LLLL", number(size_t(oom.device)), number(oom.alloc_bytes),
                                           number(oom.allowed_bytes.value_or(oom.total_bytes)),
                                           number(oom.free_bytes)));
    if (result) continue;
    python_error error;
    error.persist();
    throw error;
  }
}

void record_stream(const c10::DataPtr& data, c10::Stream stream) {
  const Block* block = block_of(data);
  if (!block) return;
  {
    Lock lock(allocator_mutex);
    device_at(block->device).allocator.record_stream(block->address, stream.id());
    device::emit_only(Kind::kRecordStream, block->device, int64_t(block->address), stream.id(), 0);
  }
  device::flush_if_full();
}

void copy_stat(const memory::Stat& from, c10::CachingAllocator::Stat& to) {
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
}

void copy_stat(const memory::PoolStat& from, c10::CachingAllocator::StatArray& to) {
  using c10::CachingAllocator::StatType;
  copy_stat(from.all, to[size_t(StatType::AGGREGATE)]);
  copy_stat(from.small_pool, to[size_t(StatType::SMALL_POOL)]);
  copy_stat(from.large_pool, to[size_t(StatType::LARGE_POOL)]);
}

c10::CachingDeviceAllocator::DeviceStats as_torch_stats(const memory::DeviceStats& stats) {
  c10::CachingDeviceAllocator::DeviceStats result;
  copy_stat(stats.allocation, result.allocation);
  copy_stat(stats.segment, result.segment);
  copy_stat(stats.active, result.active);
  copy_stat(stats.inactive_split, result.inactive_split);
  copy_stat(stats.allocated_bytes, result.allocated_bytes);
  copy_stat(stats.reserved_bytes, result.reserved_bytes);
  copy_stat(stats.active_bytes, result.active_bytes);
  copy_stat(stats.inactive_split_bytes, result.inactive_split_bytes);
  copy_stat(stats.requested_bytes, result.requested_bytes);
  copy_stat(stats.oversize_allocations, result.oversize_allocations);
  copy_stat(stats.oversize_segments, result.oversize_segments);
  result.num_alloc_retries = stats.num_alloc_retries;
  result.num_ooms = stats.num_ooms;
  result.num_sync_all_streams = stats.num_sync_all_streams;
  result.num_device_alloc = stats.num_device_alloc;
  result.num_device_free = stats.num_device_free;
  result.max_split_size = stats.max_split_size;
  return result;
}

class SimulatedAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override { return native::allocate(num_bytes, current_device()); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; } // the context is not the address
  void copy_data(void*, const void*, size_t) const override {}
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override { memory_control::empty_cache(); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override { record_stream(data, stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    Lock lock(allocator_mutex);
    return as_torch_stats(device_at(device).allocator.stats());
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { memory_control::reset_accumulated(device); }
  void resetPeakStats(c10::DeviceIndex device) override { memory_control::reset_peak(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto [free_bytes, total_bytes] = memory_control::memory_info(device);
    return {size_t(free_bytes), size_t(total_bytes)};
  }
};

SimulatedAllocator& the_allocator = *new SimulatedAllocator;

} // namespace

Block* block_of(const c10::DataPtr& data) {
  return data.get_deleter() == &free_block ? static_cast<Block*>(data.get_context()) : nullptr;
}

Block* block_of(const at::TensorBase& tensor) {
  return tensor.has_storage() ? block_of(tensor.storage().data_ptr()) : nullptr;
}

c10::DeviceAllocator& device_allocator() { return the_allocator; }

c10::DataPtr allocate(size_t num_bytes, c10::DeviceIndex index) {
  const c10::Device where(c10::DeviceType::CUDA, index);
  if (num_bytes == 0) return {nullptr, nullptr, &free_nothing, where};
  const auto stack = memory_history::take_stack(memory_history::kState);
  const int64_t stream = current_stream(index);
  std::unique_lock<std::mutex> lock(allocator_mutex);
  SimulatedMemory& device = device_at(index);
  device.stack = stack;
  memory::Result result = device.allocator.allocate_unless_undecided(num_bytes, stream);
  if (result.is_undecided) {
    const auto events = device.allocator.undecided_events();
    lock.unlock(); // the sink needs the GIL
    for (const auto& of_one_stream : events) ask_how_far(of_one_stream);
    lock.lock();
    device.stack = stack;
    result = device.allocator.allocate(num_bytes, stream);
  }
  const Totals totals(device.allocator);
  const HostWork work(index, device);
  if (!result.ok || work.waits()) lock.unlock(); // as above
  work.pay();
  if (!result.ok) tell_observers(result.oom);
  TORCH_CHECK_WITH(OutOfMemoryError, result.ok, memory::oom_message(result.oom));
  device::emit_only(Kind::kAlloc, index, int64_t(result.address), totals.allocated_bytes, totals.reserved_bytes);
  if (lock.owns_lock()) lock.unlock();
  device::flush_if_full();
  return {reinterpret_cast<void*>(result.address), new Block{result.address, num_bytes, index, {}}, &free_block, where};
}

void touch_temporary(size_t num_bytes, c10::DeviceIndex device) {
  const clock::PaidScope paid;
  allocate(num_bytes, device);
}

c10::DeviceIndex device_of_address(const void* address) {
  // Segments of device i lie above (i + 1) << 54, see heap.h.
  return c10::DeviceIndex((reinterpret_cast<uint64_t>(address) >> 54) - 1);
}

bool is_simulated_allocator(const c10::Allocator* allocator) { return allocator == &the_allocator; }

namespace memory_control {
namespace {

template <typename Visit>
void for_each_device(Visit visit) {
  for (size_t index = 0; index < devices.size(); ++index)
    if (devices[index]) visit(int(index), *devices[index]);
}

struct SegmentWithStacks {
  memory::Segment segment;
  memory_history::StackId stack;
  std::vector<memory_history::StackId> block_stacks;
};

SegmentWithStacks with_stacks(const memory_history::History& history, memory::Segment segment) {
  SegmentWithStacks result{std::move(segment), 0, {}};
  result.stack = history.stack_of_segment(result.segment.address);
  for (const auto& part : result.segment.blocks)
    result.block_stacks.push_back(part.active ? history.stack_of_block(part.address) : 0);
  return result;
}

PyObject* describe_blocks(const SegmentWithStacks& found) {
  PyObject* list = PyList_New(0);
  for (size_t i = 0; i < found.segment.blocks.size(); ++i) {
    const auto& part = found.segment.blocks[i];
    Reference entry(Py_BuildValue("{s:K,s:n,s:n,s:s,s:L}", "address", (unsigned long long)part.address, "size",
                                  Py_ssize_t(part.size), "requested_size", Py_ssize_t(part.requested_size), "state",
                                  part.state(), "frames", (long long)found.block_stacks[i]));
    PyList_Append(list, entry.get());
  }
  return list;
}

PyObject* describe_segment(const SegmentWithStacks& found) {
  const memory::Segment& segment = found.segment;
  return Py_BuildValue(
      "{s:i,s:K,s:n,s:n,s:n,s:n,s:L,s:s,s:(KK),s:N,s:L,s:N}", "device", segment.device, "address",
      (unsigned long long)segment.address, "total_size", Py_ssize_t(segment.total_size), "allocated_size",
      Py_ssize_t(segment.allocated_size), "active_size", Py_ssize_t(segment.active_size), "requested_size",
      Py_ssize_t(segment.requested_size), "stream", (long long)segment.stream, "segment_type",
      segment.is_large ? "large" : "small", "segment_pool_id", (unsigned long long)segment.pool.first,
      (unsigned long long)segment.pool.second, "is_expandable", PyBool_FromLong(segment.is_expandable), "frames",
      (long long)found.stack, "blocks", describe_blocks(found));
}

} // namespace

void set_capacity(int64_t total_bytes, int64_t context_bytes) {
  Lock lock(allocator_mutex);
  TORCH_CHECK(devices.empty(), "phantora: the capacity is set before the first allocation");
  capacity = {size_t(total_bytes), size_t(context_bytes)};
}

void set_limit_bytes(int64_t limit_bytes) {
  Lock lock(allocator_mutex);
  limit = limit_bytes < 0 ? std::nullopt : std::optional<size_t>(size_t(limit_bytes));
  for_each_device([](int, SimulatedMemory& device) { device.allocator.set_memory_limit(limit); });
}

int64_t limit_bytes() {
  Lock lock(allocator_mutex);
  return limit ? int64_t(*limit) : -1;
}

void set_fraction(double fraction, c10::DeviceIndex device) {
  Lock lock(allocator_mutex);
  device_at(device).allocator.set_memory_fraction(fraction);
}

double fraction(c10::DeviceIndex device) {
  Lock lock(allocator_mutex);
  return device_at(device).allocator.memory_fraction();
}

void set_other_bytes(c10::DeviceIndex device, int64_t num_bytes) {
  Lock lock(allocator_mutex);
  device_at(device).allocator.set_other_bytes(size_t(num_bytes));
}

void apply_settings(const char* text) {
  Lock lock(allocator_mutex);
  for (int index = 0; index < num_devices(); ++index)
    device_at(c10::DeviceIndex(index)).allocator.apply_settings(text);
}

std::pair<int64_t, int64_t> memory_info(c10::DeviceIndex device) {
  Lock lock(allocator_mutex);
  const auto [free_bytes, total_bytes] = device_at(device).allocator.memory_info();
  return {int64_t(free_bytes), int64_t(total_bytes)};
}

void empty_cache() {
  const auto stack = memory_history::take_stack(memory_history::kAll);
  std::vector<HostWork> all_work;
  {
    Lock lock(allocator_mutex);
    for_each_device([&](int index, SimulatedMemory& device) {
      device.stack = stack;
      device.allocator.empty_cache();
      all_work.emplace_back(index, device);
    });
  }
  for (const HostWork& work : all_work) work.pay();
}

void reset_peak(c10::DeviceIndex device) {
  Lock lock(allocator_mutex);
  device_at(device).allocator.reset_peak();
}

void reset_accumulated(c10::DeviceIndex device) {
  Lock lock(allocator_mutex);
  device_at(device).allocator.reset_accumulated();
}

PyObject* statistics(c10::DeviceIndex device) {
  std::vector<std::pair<std::string, int64_t>> flat;
  {
    Lock lock(allocator_mutex);
    flat = device_at(device).allocator.stats().flatten();
  }
  PyObject* result = PyDict_New();
  for (const auto& [name, value] : flat) {
    Reference number(PyLong_FromLongLong(value));
    PyDict_SetItemString(result, name.c_str(), number.get());
  }
  return result;
}

PyObject* snapshot(c10::DeviceIndex device) {
  std::vector<SegmentWithStacks> segments;
  {
    Lock lock(allocator_mutex);
    SimulatedMemory& memory = device_at(device);
    memory.stack = 0;
    for (auto& segment : memory.allocator.snapshot())
      segments.push_back(with_stacks(memory.history, std::move(segment)));
  }
  PyObject* list = PyList_New(0);
  for (const auto& segment : segments) {
    Reference entry(describe_segment(segment));
    if (!entry || PyList_Append(list, entry.get()) < 0) {
      Py_DECREF(list);
      return nullptr;
    }
  }
  return list;
}

PyObject* history(c10::DeviceIndex device) {
  std::vector<memory_history::Entry> entries;
  {
    Lock lock(allocator_mutex);
    const auto& kept = device_at(device).history.entries();
    entries.assign(kept.begin(), kept.end());
  }
  PyObject* list = PyList_New(0);
  for (const auto& [event, time_ns, stack] : entries) {
    Reference entry(Py_BuildValue("(iKnLKKLL)", int(event.action), (unsigned long long)event.address,
                                  Py_ssize_t(event.bytes), (long long)event.stream,
                                  (unsigned long long)event.pool.first, (unsigned long long)event.pool.second,
                                  (long long)time_ns, (long long)stack));
    if (!entry || PyList_Append(list, entry.get()) < 0) {
      Py_DECREF(list);
      return nullptr;
    }
  }
  return list;
}

void record_history(bool is_on, int64_t level, int64_t max_entries, bool clear, int64_t skipped_actions) {
  Lock lock(allocator_mutex);
  memory_history::set({is_on, is_on ? int(level) : memory_history::kNever, size_t(std::max<int64_t>(max_entries, 1)),
                       uint32_t(skipped_actions)});
  if (is_on && !clear) return;
  for_each_device([](int, SimulatedMemory& device) { device.history.clear(); });
}

bool is_history_on() { return memory_history::settings().is_on; }

void observe_out_of_memory(PyObject* observer) {
  Py_INCREF(observer);
  observers.push_back(observer);
}

PyObject* settings_of_allocator(c10::DeviceIndex device) {
  memory::Config config;
  {
    Lock lock(allocator_mutex);
    config = device_at(device).allocator.config();
  }
  Reference divisions(PyDict_New());
  for (size_t i = 0; i < config.roundup_power2_divisions.size(); ++i) {
    Reference count(PyLong_FromSize_t(config.roundup_power2_divisions[i]));
    if (!count) return nullptr;
    PyDict_SetItemString(divisions.get(), std::to_string(size_t(1) << i).c_str(), count.get());
  }
  const bool is_unlimited = config.max_split_size == memory::kUnlimited;
  return Py_BuildValue("{s:s,s:L,s:d,s:O,s:O}", "PYTORCH_CUDA_ALLOC_CONF", config.settings.c_str(), "max_split_size",
                       is_unlimited ? -1LL : (long long)config.max_split_size, "garbage_collection_threshold",
                       config.garbage_collection_threshold, "expandable_segments",
                       config.expandable_segments ? Py_True : Py_False, "roundup_power2_divisions", divisions.get());
}

int64_t block_bytes(c10::DeviceIndex device, uint64_t address) {
  Lock lock(allocator_mutex);
  return int64_t(device_at(device).allocator.block_size(address));
}

void create_pool(c10::DeviceIndex device, uint64_t first, uint64_t second) {
  Lock lock(allocator_mutex);
  device_at(device).allocator.create_pool({first, second});
}

void begin_pool(c10::DeviceIndex device, uint64_t first, uint64_t second, int64_t stream) {
  Lock lock(allocator_mutex);
  const auto thread = std::this_thread::get_id();
  device_at(device).allocator.begin_allocate_to_pool({first, second}, [stream, thread](int64_t used) {
    if (stream == kAllStreams) return true;
    return stream == kThisThread ? std::this_thread::get_id() == thread : used == stream;
  });
}

void end_pool(c10::DeviceIndex device, uint64_t first, uint64_t second) {
  Lock lock(allocator_mutex);
  device_at(device).allocator.end_allocate_to_pool({first, second});
}

void release_pool(c10::DeviceIndex device, uint64_t first, uint64_t second) {
  Lock lock(allocator_mutex);
  device_at(device).allocator.release_pool({first, second});
}

int pool_use_count(c10::DeviceIndex device, uint64_t first, uint64_t second) {
  Lock lock(allocator_mutex);
  return device_at(device).allocator.pool_use_count({first, second});
}

void lock_for_fork() { allocator_mutex.lock(); }

void unlock_after_fork() { allocator_mutex.unlock(); }

} // namespace memory_control
} // namespace phantora::native
