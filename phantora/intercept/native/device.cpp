#include "device.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include <c10/util/Exception.h>

#include "sink.h"
#include "transport.h"

namespace phantora::native::device {
namespace {

constexpr size_t kFlushAt = 4096; // records: 160 KiB, below the usual socket buffer

struct Graph {
  int device = 0;
  int64_t origin_stream = 0;
  std::vector<Record> records;
};

// Never destroyed: storages may die while the process exits.
std::mutex& mutex = *new std::mutex;
auto& ring = *new std::vector<Record>;
auto& timeline = *new Timeline;
auto& signatures = *new std::deque<Signature>;
auto& graphs = *new std::unordered_map<int64_t, Graph>;

std::atomic<bool> recording{true};
std::atomic<bool> ring_is_full{false};
std::atomic<bool> capturing{false};
Graph capture;
int64_t num_taken = 0;
int64_t next_event = 1;
int64_t next_graph = 1;

using Lock = std::lock_guard<std::mutex>;

// The functions below run with the mutex held.

void append(Kind kind, int device, int64_t a, int64_t b, int64_t c) {
  ring.push_back({int32_t(kind), int16_t(device), clock::domain(), clock::last_ns(), a, b, c});
  if (ring.size() >= kFlushAt) ring_is_full = true;
}

void charge_locked(Kind kind) { clock::charge(clock::call_cost(kind)); }

const Signature& signature_of(int64_t id) {
  TORCH_CHECK(id >= 0 && size_t(id) < signatures.size(), "phantora: signature ", id, " is not defined");
  return signatures[size_t(id)];
}

// What a graph keeps. Anything else (memory, waits of the host) happens while it is captured and never again.
bool is_captured(Kind kind) {
  return kind == Kind::kOp || kind == Kind::kEventRecord || kind == Kind::kEventWait || kind == Kind::kCollective;
}

bool keep_for_graph(Kind kind, int device, int64_t a, int64_t b, int64_t c) {
  if (!capturing || !is_captured(kind)) return false;
  capture.records.push_back({int32_t(kind), int16_t(device), clock::domain(), clock::last_ns(), a, b, c});
  return true;
}

void run_operator(int64_t id, int device, int64_t stream) {
  timeline.run(device, stream, clock::last_ns(), signature_of(id).duration_ns);
  append(Kind::kOp, device, id, stream, 0);
}

void run_event_record(int64_t event, int device, int64_t stream) {
  timeline.record_event(event, device, stream, clock::last_ns());
  append(Kind::kEventRecord, device, event, stream, 0);
}

void run_event_wait(int64_t event, int device, int64_t stream) {
  timeline.wait_event(device, stream, event, clock::last_ns());
  append(Kind::kEventWait, device, event, stream, 0);
}

// A wait that took no virtual time leaves a record, too: on another cluster it may.
void wait_on_host(int device, int64_t end_ns, WaitedFor what, int64_t which) {
  const int64_t begin_ns = clock::last_ns();
  clock::wait_until_ns(end_ns);
  append(Kind::kHostWait, device, begin_ns, int64_t(what), which);
}

// Whether the local timeline may answer. A thread of the script's own is told the time without contention: virtual time
// may not pass the main thread's clock, and the main thread may be waiting for it, unseen.
bool can_tell(const Progress& progress) {
  return progress.is_known && (progress.is_exact || clock::domain() != 0);
}

// True: the wait is over. False: only the engine can tell.
bool wait_locally(int device, const Progress& progress, WaitedFor what, int64_t which) {
  charge_locked(Kind::kHostWait);
  if (!can_tell(progress)) return false;
  wait_on_host(device, progress.end_ns, what, which);
  return true;
}

} // namespace

void set_recording(bool on) { recording = on; }

bool is_recording() { return recording; }

int64_t num_records() {
  Lock lock(mutex);
  return num_taken + int64_t(ring.size());
}

void take_records(std::vector<Record>& records) {
  Lock lock(mutex);
  records.swap(ring);
  ring.clear();
  ring.reserve(kFlushAt);
  ring_is_full = false;
  num_taken += int64_t(records.size());
}

void emit(Kind kind, int device, int64_t a, int64_t b, int64_t c) {
  emit_only(kind, device, a, b, c);
  flush_if_full();
}

void emit_only(Kind kind, int device, int64_t a, int64_t b, int64_t c) {
  Lock lock(mutex);
  if (!recording) return;
  if (kind != Kind::kHostWait) charge_locked(kind); // whoever waited has paid when it called
  if (!keep_for_graph(kind, device, a, b, c)) append(kind, device, a, b, c);
}

void flush_if_full() {
  if (ring_is_full && transport::is_connected()) transport::flush();
}

void charge(Kind kind) {
  Lock lock(mutex);
  if (recording) charge_locked(kind);
}

void charge_view(Kind kind) {
  charge_units(kind, 1);
  if (clock::is_inside_subclass()) charge_units(Kind::kSubclass, 1);
}

void charge_units(Kind kind, int64_t count) {
  if (recording) clock::charge_units(clock::call_cost(kind), count);
}

int64_t define_signature(const Signature& signature) {
  Lock lock(mutex);
  signatures.push_back(signature);
  return int64_t(signatures.size()) - 1;
}

void launch(int64_t signature, int device, int64_t stream) {
  if (signature < 0) return;
  {
    Lock lock(mutex);
    if (!recording) return;
    clock::charge(signature_of(signature).host);
    if (clock::is_inside_subclass()) clock::charge_units(clock::call_cost(Kind::kSubclass), 1);
    if (!keep_for_graph(Kind::kOp, device, signature, stream, 0)) run_operator(signature, device, stream);
  }
  flush_if_full();
}

int64_t record_event_only(int device, int64_t stream, int64_t replaced_event) {
  Lock lock(mutex);
  const int64_t event = next_event++;
  if (!recording) return event;
  charge_locked(Kind::kEventRecord);
  if (!keep_for_graph(Kind::kEventRecord, device, event, stream, 0)) run_event_record(event, device, stream);
  if (replaced_event) {
    timeline.forget_event(replaced_event);
    append(Kind::kEventDestroy, device, replaced_event, 0, 0);
  }
  return event;
}

int64_t record_event(int device, int64_t stream, int64_t replaced_event) {
  const int64_t event = record_event_only(device, stream, replaced_event);
  flush_if_full();
  return event;
}

void wait_event(int device, int64_t stream, int64_t event) {
  {
    Lock lock(mutex);
    if (!recording) return;
    charge_locked(Kind::kEventWait);
    if (!keep_for_graph(Kind::kEventWait, device, event, stream, 0)) run_event_wait(event, device, stream);
  }
  flush_if_full();
}

void destroy_event_only(int device, int64_t event) {
  Lock lock(mutex);
  timeline.forget_event(event);
  if (!recording) return;
  charge_locked(Kind::kEventDestroy);
  append(Kind::kEventDestroy, device, event, 0, 0);
}

void destroy_event(int device, int64_t event) {
  destroy_event_only(device, event);
  flush_if_full();
}

bool is_known_done(int64_t event) {
  Lock lock(mutex);
  return timeline.is_done(event, clock::last_ns()) == Timeline::Certainty::kDone;
}

bool must_ask_whether_done(int64_t event) {
  Lock lock(mutex);
  return recording && timeline.is_done(event, clock::last_ns()) == Timeline::Certainty::kUnknown;
}

bool ask_whether_done(int64_t event) {
  if (!sink::query_event(event)) return false;
  Lock lock(mutex);
  timeline.note_done(event, clock::last_ns());
  return true;
}

void synchronize_stream(int device, int64_t stream) {
  {
    Lock lock(mutex);
    if (!recording) return;
    if (wait_locally(device, timeline.stream_state(device, stream), WaitedFor::kStream, stream)) return;
  }
  sink::synchronize_stream(device, stream);
}

void synchronize_event(int device, int64_t event) {
  {
    Lock lock(mutex);
    if (!recording) return;
    if (wait_locally(device, timeline.event_state(event), WaitedFor::kEvent, event)) return;
  }
  sink::synchronize_event(event);
}

void synchronize_device(int device) {
  {
    Lock lock(mutex);
    if (!recording) return;
    if (wait_locally(device, timeline.device_state(device), WaitedFor::kDevice, 0)) return;
  }
  sink::synchronize_device(device);
}

bool query_stream(int device, int64_t stream) {
  {
    Lock lock(mutex);
    if (!recording) return true;
    charge_locked(Kind::kQuery);
    const Progress progress = timeline.stream_state(device, stream);
    if (can_tell(progress) || progress.end_ns > clock::last_ns()) return progress.end_ns <= clock::last_ns();
  }
  return sink::query_stream(device, stream);
}

bool query_event(int64_t event) {
  {
    Lock lock(mutex);
    if (!recording) return true;
    charge_locked(Kind::kQuery);
    const Progress progress = timeline.event_state(event);
    if (can_tell(progress) || progress.end_ns > clock::last_ns()) return progress.end_ns <= clock::last_ns();
  }
  return sink::query_event(event);
}

double elapsed_ms(int64_t begin_event, int64_t end_event) {
  {
    Lock lock(mutex);
    const Progress begin = timeline.event_state(begin_event), end = timeline.event_state(end_event);
    if (can_tell(begin) && can_tell(end)) {
      TORCH_CHECK(std::max(begin.end_ns, end.end_ns) <= clock::last_ns(), "CUDA error: device not ready");
      return double(end.end_ns - begin.end_ns) / 1e6;
    }
  }
  return sink::elapsed_ms(begin_event, end_event);
}

void set_local_answers(bool on) {
  Lock lock(mutex);
  timeline.set_kernels_exact(on);
}

void mark_unresolved(int device, int64_t stream) {
  Lock lock(mutex);
  timeline.mark_unresolved(device, stream);
}

void resolve_stream(int device, int64_t stream, int64_t end_ns) {
  Lock lock(mutex);
  timeline.resolve_stream(device, stream, end_ns, next_event - 1);
}

void resolve_event(int64_t event, int64_t time_ns) {
  Lock lock(mutex);
  timeline.resolve_event(event, time_ns);
}

Progress stream_state(int device, int64_t stream) {
  Lock lock(mutex);
  return timeline.stream_state(device, stream);
}

Progress event_state(int64_t event) {
  Lock lock(mutex);
  return timeline.event_state(event);
}

int64_t num_known_events() {
  Lock lock(mutex);
  return int64_t(timeline.num_events());
}

void begin_capture(int device, int64_t stream) {
  Lock lock(mutex);
  capture = Graph{device, stream, {}};
  capturing = true;
}

int64_t end_capture() {
  Lock lock(mutex);
  capturing = false;
  const int64_t id = next_graph++;
  graphs[id] = std::move(capture);
  capture = Graph{};
  return id;
}

bool is_capturing() { return capturing; }

void launch_graph(int64_t id, int device, int64_t stream) {
  Graph graph;
  {
    Lock lock(mutex);
    const auto entry = graphs.find(id);
    TORCH_CHECK(entry != graphs.end(), "phantora: no such CUDA graph");
    if (!recording) return;
    graph = entry->second; // a copy: collectives below are issued without the mutex
    charge_locked(Kind::kGraphLaunch);
  }
  std::unordered_map<int64_t, int64_t> replayed_events;
  for (const Record& record : graph.records) {
    const int64_t target = record.b == graph.origin_stream ? stream : record.b;
    if (Kind(record.kind) == Kind::kCollective) {
      const clock::PaidScope paid;
      sink::issue_captured_collective(record.a, device, target);
      continue;
    }
    Lock lock(mutex);
    if (Kind(record.kind) == Kind::kOp) {
      run_operator(record.a, record.device, target);
    } else if (Kind(record.kind) == Kind::kEventRecord) {
      const int64_t event = replayed_events[record.a] = next_event++;
      run_event_record(event, record.device, target);
    } else {
      const auto replayed = replayed_events.find(record.a);
      run_event_wait(replayed == replayed_events.end() ? record.a : replayed->second, record.device, target);
    }
  }
  {
    Lock lock(mutex);
    for (const Record& record : graph.records) {
      const auto replayed = replayed_events.find(record.a);
      if (Kind(record.kind) != Kind::kEventRecord || replayed == replayed_events.end()) continue;
      timeline.forget_event(replayed->second);
      append(Kind::kEventDestroy, record.device, replayed->second, 0, 0);
    }
  }
  flush_if_full();
}

void destroy_graph(int64_t id) {
  Lock lock(mutex);
  graphs.erase(id);
}

void lock_for_fork() { mutex.lock(); }

void unlock_after_fork() { mutex.unlock(); }

void reset_after_fork(bool keep_recording) {
  ring.clear();
  ring_is_full = false;
  timeline = Timeline{};
  if (!keep_recording) recording = false;
  clock::restart_cpu_time();
  clock::set_now_ns(0);
}

} // namespace phantora::native::device
