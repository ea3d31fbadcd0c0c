#include <Python.h>

#include "clock.h"

#include <ctime>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/macros/Export.h>

// Declared here because graph_task.h, where it lives, brings the whole autograd engine along (seconds of compile time).
namespace torch::autograd {
TORCH_API int get_current_graph_task_id();
}

namespace phantora::native::clock {
namespace {

struct Domain {
  int16_t id = 0;
  std::atomic<int64_t> now_ns{0};
};

Domain main_domain;
std::mutex domains_mutex;
auto& other_domains = *new std::unordered_map<int16_t, Domain*>; // never destroyed: threads may outlive main()

thread_local Domain* own_domain = nullptr;
thread_local int64_t counted_cpu_ns = 0;
thread_local bool is_paid = false;
thread_local int64_t cost_share = 1000; // thousandths of what the host profile says

std::atomic<bool> is_measured{false};
std::atomic<bool> is_paused{false};
std::atomic<double> cpu_scale{1.0};

CallCost call_costs[kNumKinds];

// A poll that costs nothing would let `while not work.is_completed()` spin for ever at one point of virtual time.
// Typical cost of cudaEventQuery / cudaGraphLaunch on a current host; the launcher overwrites them from [host].
constexpr int64_t kDefaultQueryNs = 1000;
constexpr int64_t kDefaultGraphLaunchNs = 8000;
const bool defaults_are_set = [] {
  call_costs[int(Kind::kQuery)] = {kDefaultQueryNs, kDefaultQueryNs};
  call_costs[int(Kind::kGraphLaunch)] = {kDefaultGraphLaunchNs, kDefaultGraphLaunchNs};
  return true;
}();

Domain& current_domain() {
  return own_domain ? *own_domain : main_domain;
}

int64_t thread_cpu_ns() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

void add_measured_cpu_time() {
  const int64_t cpu_ns = thread_cpu_ns();
  const int64_t used_ns = std::max<int64_t>(cpu_ns - counted_cpu_ns, 0);
  counted_cpu_ns = cpu_ns;
  if (is_paused.load(std::memory_order_relaxed)) return;
  current_domain().now_ns += static_cast<int64_t>(static_cast<double>(used_ns) * cpu_scale.load());
}

// Only the thread itself changes its frame pointer, so that reading it needs no GIL.
bool has_python_frame() {
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (!state) return false;
#if PY_VERSION_HEX >= 0x030D0000
  return state->current_frame != nullptr;
#elif PY_VERSION_HEX >= 0x030B0000
  return state->cframe->current_frame != nullptr;
#else
  return state->frame != nullptr;
#endif
}

// The engine runs this call by itself. Python called from a backward (recomputation under activation checkpointing, a
// hook, a Python autograd.Function) costs as much as Python called from forward.
enum Caller : int { kNotFixed, kPython, kEngine };
thread_local int fixed_caller = kNotFixed;

bool in_native_backward() {
  if (fixed_caller != kNotFixed) return fixed_caller == kEngine;
  return torch::autograd::get_current_graph_task_id() != -1 && !has_python_frame();
}

int64_t scaled(int64_t amount_ns) { return cost_share == 1000 ? amount_ns : amount_ns * cost_share / 1000; }

} // namespace

int16_t domain() { return current_domain().id; }

int64_t last_ns() { return current_domain().now_ns.load(std::memory_order_relaxed); }

int64_t now_ns() {
  if (is_measured.load(std::memory_order_relaxed)) add_measured_cpu_time();
  return last_ns();
}

void charge(const CallCost& cost) {
  if (is_measured.load(std::memory_order_relaxed)) return add_measured_cpu_time();
  if (is_paid) return;
  const bool is_same = cost.forward_ns == cost.backward_ns;
  const int64_t amount_ns = !is_same && in_native_backward() ? cost.backward_ns : cost.forward_ns;
  if (amount_ns) current_domain().now_ns += scaled(amount_ns);
}

void charge_units(const CallCost& cost, int64_t count) {
  if (is_paid || is_measured.load(std::memory_order_relaxed)) return;
  const bool is_same = cost.forward_ns == cost.backward_ns;
  current_domain().now_ns += scaled(count * (!is_same && in_native_backward() ? cost.backward_ns : cost.forward_ns));
}

// The dispatcher's fallback for the Python key excludes every key above it while the subclass runs (after_Python_keyset
// in ATen/core/PythonFallbackKernel.cpp). This one is above it, and nobody else excludes it.
bool is_inside_subclass() {
  return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
}

bool is_inside_kernel() { return fixed_caller != kNotFixed; }

void advance_ns(int64_t amount_ns) { current_domain().now_ns += amount_ns; }

void wait_until_ns(int64_t time_ns) {
  auto& now = current_domain().now_ns;
  int64_t seen = now.load();
  while (seen < time_ns && !now.compare_exchange_weak(seen, time_ns)) {
  }
}

void set_now_ns(int64_t time_ns) { current_domain().now_ns = time_ns; }

void enter_thread(int16_t domain, int64_t start_ns) {
  restart_cpu_time();
  if (domain == 0) {
    own_domain = nullptr;
    return;
  }
  std::lock_guard<std::mutex> guard(domains_mutex);
  Domain*& entry = other_domains[domain];
  if (!entry) {
    entry = new Domain;
    entry->id = domain;
  }
  entry->now_ns = start_ns;
  own_domain = entry;
}

void set_mode(bool measured, double scale) {
  cpu_scale = scale;
  is_measured = measured;
  restart_cpu_time();
}

void set_call_cost(Kind kind, CallCost cost) { call_costs[int(kind)] = cost; }

const CallCost& call_cost(Kind kind) { return call_costs[int(kind)]; }

SameCallerScope::SameCallerScope() : previous_(fixed_caller) {
  fixed_caller = in_native_backward() ? kEngine : kPython;
}

SameCallerScope::~SameCallerScope() { fixed_caller = previous_; }

int64_t exchange_cost_share(int64_t thousandths) { return std::exchange(cost_share, thousandths); }

void pause_cpu_time(bool on) {
  if (is_measured.load(std::memory_order_relaxed)) add_measured_cpu_time();
  is_paused = on;
}

PaidScope::PaidScope() { is_paid = true; }

PaidScope::~PaidScope() { is_paid = false; }

void restart_cpu_time() { counted_cpu_ns = thread_cpu_ns(); }

} // namespace phantora::native::clock
