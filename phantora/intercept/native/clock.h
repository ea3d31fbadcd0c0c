// Host clocks. Virtual nanoseconds, one clock per domain: domain 0 is shared by the main thread and all native threads
// (autograd's run while the main thread waits for them), every thread created by Python has a domain of its own.
//
// modelled: an intercepted call costs what the host profile says, other CPU work costs nothing (deterministic).
// measured: the CPU time that the calling thread used since its previous call is added instead, times a scale.
#pragma once

#include <cstdint>

#include "record.h"

namespace phantora::native {

struct CallCost {
  int64_t forward_ns = 0;
  int64_t backward_ns = 0; // the autograd engine calls without any Python in between
};

namespace clock {

int16_t domain();          // of the calling thread
int64_t now_ns();          // of the calling thread's domain; in measured mode after adding the CPU time used so far
int64_t last_ns();         // the same without looking at the CPU time
void charge(const CallCost& cost);
void charge_units(const CallCost& cost, int64_t count); // measured mode: nothing, the thread's CPU time has it
bool is_inside_subclass(); // __torch_dispatch__ of a tensor subclass (DTensor) or of a mode, in Python or in C++
bool is_inside_kernel(); // of Python: what it does is ours, not the script's
void advance_ns(int64_t amount_ns);
void wait_until_ns(int64_t time_ns); // never moves backwards
void set_now_ns(int64_t time_ns);
void enter_thread(int16_t domain, int64_t start_ns);
void set_mode(bool measured, double scale);
void set_call_cost(Kind kind, CallCost cost);
const CallCost& call_cost(Kind kind);
// Calls of this thread cost so many thousandths of what the host profile says, from now on; returns what it was before.
int64_t exchange_cost_share(int64_t thousandths);
void pause_cpu_time(bool on); // measured mode: the process works on something that the simulated one need not do
void restart_cpu_time(); // the calling thread's CPU time so far is not counted (after fork it starts again at zero)

// While it lives, whoever stands behind the calling thread's calls stays who it was at its construction: a Python
// kernel that the autograd engine called is not Python code of the user's.
class SameCallerScope {
 public:
  SameCallerScope();
  ~SameCallerScope();
  SameCallerScope(const SameCallerScope&) = delete;
  SameCallerScope& operator=(const SameCallerScope&) = delete;

 private:
  const int previous_;
};

// While it lives, calls of this thread cost nothing: the launch of a CUDA graph has paid for them.
class PaidScope {
 public:
  PaidScope();
  ~PaidScope();
  PaidScope(const PaidScope&) = delete;
  PaidScope& operator=(const PaidScope&) = delete;
};

} // namespace clock
} // namespace phantora::native
