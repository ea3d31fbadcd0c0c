// The Python module phantora_native: nothing here but names.
#include <Python.h>

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <c10/core/Allocator.h>

#include "clock.h"
#include "contents.h"
#include "cpu_random.h"
#include "current.h"
#include "device.h"
#include "device_allocator.h"
#include "memory_history.h"
#include "exit_guard.h"
#include "generator.h"
#include "guard.h"
#include "pinned_memory.h"
#include "planned_operator.h"
#include "python_binding.h"
#include "python_spec.h"
#include "python_support.h"
#include "python_tensor.h"
#include "sink.h"
#include "storage_kernels.h"
#include "transport.h"
#include "work.h"

namespace phantora::native {
namespace {

// --- start

// Same order everywhere: transport before memory before the device.
void lock_all() {
  transport::lock_for_fork();
  memory_control::lock_for_fork();
  lock_pinned_for_fork();
  device::lock_for_fork();
}

void unlock_all() {
  device::unlock_after_fork();
  unlock_pinned_after_fork();
  memory_control::unlock_after_fork();
  transport::unlock_after_fork();
}

// A DataLoader worker forked by a rank is not part of the simulation; a rank forked by the warm parent, which has no
// connection yet, is.
void start_as_child() {
  device::reset_after_fork(/*keep_recording=*/!transport::is_connected());
  transport::forget_connection();
}

void unlock_child() {
  start_as_child();
  unlock_all();
}

void install(int64_t count, PyObject* sink_object, std::string_view libtorch_python) {
  set_num_devices(int(count));
  sink::set(sink_object);
  register_device_guard();
  c10::SetAllocator(c10::DeviceType::CUDA, &device_allocator(), /*priority=*/255); // libtorch_cuda's has less
  connect_to_libtorch_python(std::string(libtorch_python).c_str());
  static bool is_first = true;
  if (!std::exchange(is_first, false)) return;
  register_storage_kernels();
  register_cpu_random_kernels();
  register_work_operators();
  install_exit_guard();
  pthread_atfork(lock_all, unlock_all, unlock_child);
}

void ready(PyObject* out_of_memory_error) {
  set_out_of_memory_error(out_of_memory_error);
  probe_tensor_layout();
}

// A CUDA build's CUDAHooks registrar prints that ours stays, with fprintf.
void mute_stderr(bool on) {
  static int saved = -1;
  if (on && saved < 0) {
    saved = dup(STDERR_FILENO);
    const int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nothing, STDERR_FILENO);
    close(nothing);
  } else if (!on && saved >= 0) {
    dup2(saved, STDERR_FILENO);
    close(saved);
    saved = -1;
  }
}

// --- transport

void check_connection(bool ok) {
  if (!ok) PyErr_SetString(PyExc_ConnectionError, "the simulation engine closed the connection");
}

void flush() { check_connection(transport::flush()); }

void send_frame(int64_t type, std::string_view payload) {
  check_connection(transport::send_after_records(uint8_t(type), payload));
}

void send_definition(int64_t type, std::string_view payload) {
  check_connection(transport::send_before_records(uint8_t(type), payload));
}

PyObject* drain() {
  std::vector<Record> records;
  device::take_records(records);
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(records.data()),
                                   Py_ssize_t(records.size() * sizeof(Record)));
}

void reset_after_fork() { start_as_child(); }

// --- clock

void charge_units(int64_t kind, int64_t count) {
  TORCH_CHECK(kind >= 0 && kind < kNumKinds, "charge_units: unknown kind ", kind);
  device::charge_units(Kind(kind), count);
}

void set_call_cost(int64_t kind, int64_t forward_ns, int64_t backward_ns) {
  TORCH_CHECK(kind >= 0 && kind < kNumKinds, "set_call_cost_ns: unknown kind ", kind);
  clock::set_call_cost(Kind(kind), {forward_ns, backward_ns});
}

// --- launches and events

int64_t define_signature(int64_t duration_ns, int64_t host_forward_ns, int64_t host_backward_ns) {
  return device::define_signature({duration_ns, {host_forward_ns, host_backward_ns}});
}

void launch(int64_t signature, int64_t device) {
  device::launch(signature, int(device), current_stream(c10::DeviceIndex(device)));
}

void emit(int64_t kind, int64_t device, int64_t a, int64_t b, int64_t c) {
  TORCH_CHECK(kind >= 0 && kind < kNumKinds, "emit: unknown kind ", kind);
  device::emit(Kind(kind), int(device), a, b, c);
}

int64_t record_event(int64_t device, int64_t stream) { return device::record_event(int(device), stream); }

// The blocking ones release nothing themselves: the sink takes the GIL, which the caller already has.
void synchronize_event(int64_t event) { device::synchronize_event(current_device(), event); }

std::pair<int64_t, bool> as_pair(const Progress& progress) { return {progress.end_ns, progress.is_certain()}; }

std::pair<int64_t, bool> stream_state(int64_t device, int64_t stream) {
  return as_pair(device::stream_state(int(device), stream));
}

std::pair<int64_t, bool> event_state(int64_t event) { return as_pair(device::event_state(event)); }

PyObject* capture(bool on) {
  if (!on) return PyLong_FromLongLong(device::end_capture());
  device::begin_capture(current_device(), current_stream(current_device()));
  Py_RETURN_NONE;
}

void launch_graph(int64_t graph) {
  device::launch_graph(graph, current_device(), current_stream(current_device()));
}

// --- memory, generators, tensors

PyObject* apply_allocator_settings(std::string_view text) {
  memory_control::apply_settings(std::string(text).c_str());
  Py_RETURN_NONE;
}

int64_t address(const at::Tensor& tensor) { return reinterpret_cast<int64_t>(tensor.storage().data()); }

PyObject* storage_resize(PyObject* storage, int64_t num_bytes) {
  Reference implementation(PyObject_GetAttrString(storage, "_cdata"));
  if (!implementation) return nullptr;
  auto* pointer = static_cast<c10::StorageImpl*>(PyLong_AsVoidPtr(implementation.get()));
  if (!pointer && PyErr_Occurred()) return nullptr;
  resize_storage(*pointer, size_t(num_bytes));
  Py_INCREF(storage);
  return storage;
}

void pin_address(int64_t address, int64_t num_bytes) { pin(reinterpret_cast<void*>(address), size_t(num_bytes)); }

void unpin_address(int64_t address) { unpin(reinterpret_cast<void*>(address)); }

PyObject* python_default_generator(int64_t device) {
  return wrap_generator(default_generator(c10::DeviceIndex(device)));
}

void philox(int64_t device, int64_t increment) {
  advance_philox(default_generator(c10::DeviceIndex(device)), uint64_t(increment));
}

// --- known contents

at::Tensor shadow(const at::Tensor& tensor) {
  Block* block = block_of(tensor);
  return block ? block->contents.view(tensor, block->num_bytes) : at::Tensor();
}

at::Tensor shadow_new(const at::Tensor& tensor) {
  Block* block = block_of(tensor);
  return block ? block->contents.view_for_writing(tensor, block->num_bytes) : at::Tensor();
}

void shadow_drop(const at::Tensor& tensor) {
  if (Block* block = block_of(tensor)) block->contents.forget();
}

void shadow_pending(const at::Tensor& tensor, int64_t token) {
  if (Block* block = block_of(tensor)) block->contents.add_pending(tensor, token);
}

bool shadow_has(const at::Tensor& tensor) {
  const Block* block = block_of(tensor);
  return block && !block->contents.is_unknown();
}

void mark_stand_in(const at::Tensor& tensor) {
  if (Block* block = block_of(tensor)) block->contents.mark_stand_in();
}

bool is_stand_in(const at::Tensor& tensor) {
  const Block* block = block_of(tensor);
  return block && block->contents.is_stand_in();
}

bool is_small(const at::Tensor& tensor) {
  return tensor.storage().nbytes() <= shadow_limit_bytes(tensor.scalar_type());
}

// --- planned operators

void fast(std::string_view name, std::string_view overload, int64_t pure_out) {
  planned::put_in_front(std::string(name).c_str(), std::string(overload).c_str(), int(pure_out));
}

PyObject* plan(PyObject*, PyObject* arguments) {
  return translate_errors([&]() -> PyObject* {
    long long signature = 0, philox_increment = 0;
    PyObject *outs = nullptr, *temporaries = nullptr;
    int large = 0;
    if (!PyArg_ParseTuple(arguments, "LOp|LO", &signature, &outs, &large, &philox_increment, &temporaries))
      return nullptr;
    const bool is_taken = planned::plan(signature, outs, large != 0, philox_increment, temporaries);
    return PyErr_Occurred() ? nullptr : PyBool_FromLong(is_taken);
  });
}

// --- collectives

// Through the dispatcher, whose Python side boxes the Work.
PyObject* find_operator(const char* name) {
  Reference torch(PyImport_ImportModule("torch"));
  Reference ops(torch ? PyObject_GetAttrString(torch.get(), "ops") : nullptr);
  Reference library(ops ? PyObject_GetAttrString(ops.get(), "phantora") : nullptr);
  Reference packet(library ? PyObject_GetAttrString(library.get(), name) : nullptr);
  return packet ? PyObject_GetAttrString(packet.get(), "default") : nullptr;
}

PyObject* make_boxed_work(PyObject* device, PyObject* stream, PyObject* tensors, PyObject* blocking) {
  static PyObject* op = find_operator("make_work");
  return op ? PyObject_CallFunctionObjArgs(op, device, stream, tensors, blocking, nullptr) : nullptr;
}

PyObject* stash_tensors_in_work(PyObject* work, PyObject* tensors) {
  static PyObject* op = find_operator("stash_tensors");
  return op ? PyObject_CallFunctionObjArgs(op, work, tensors, nullptr) : nullptr;
}

PyMethodDef methods[] = {
    method<install>("install", "install(num_devices, sink, path of libtorch_python): after torch._C is loaded"),
    method<ready>("ready", "ready(torch.OutOfMemoryError): after import torch"),
    method<mute_stderr>("mute_stderr", "mute_stderr(on)"),
    method<start_thread_that_needs_the_gil_at_exit>("start_thread_that_needs_the_gil_at_exit", "for tests"),

    method<+[](int64_t fd) { transport::connect(int(fd)); }>("connect", "connect(fd): -1 disconnects"),
    method<send_frame>("send_frame", "send_frame(type, payload): pending records, then this frame"),
    method<send_definition>("send_definition", "send_definition(type, payload): this frame, before pending records"),
    method<flush>("flush", "flush(): send pending records"),
    method<drain>("drain", "drain() -> bytes: pending records, when not connected"),
    method<device::num_records>("num_records", "num_records() -> records so far, sent ones too"),
    method<device::set_recording>("set_recording", "set_recording(on)"),
    method<device::is_recording>("is_recording", "is_recording()"),
    method<reset_after_fork>("reset_after_fork", "reset_after_fork(): what a forked child does by itself"),

    method<clock::now_ns>("now_ns", "now_ns(): virtual host time of the calling thread"),
    method<clock::advance_ns>("advance_ns", "advance_ns(amount)"),
    method<clock::wait_until_ns>("wait_until_ns", "wait_until_ns(time): never backwards"),
    method<clock::set_now_ns>("set_now_ns", "set_now_ns(time)"),
    method<+[](int64_t domain, int64_t start_ns) { clock::enter_thread(int16_t(domain), start_ns); }>(
        "enter_thread", "enter_thread(domain, start_ns): a clock of its own for the calling thread"),
    method<clock::set_mode>("set_clock_mode", "set_clock_mode(measured, scale)"),
    method<clock::exchange_cost_share>("set_cost_share", "set_cost_share(thousandths) -> previous, of this thread's calls"),
    method<+[](bool on) { clock::pause_cpu_time(on); }>("pause_cpu_time", "pause_cpu_time(on): measured CPU time is not counted"),
    method<charge_units>("charge_units", "charge_units(kind, count): host time of things that are no call of the device"),
    method<set_call_cost>("set_call_cost_ns", "set_call_cost_ns(kind, forward_ns, backward_ns)"),
    method<+[]() -> int64_t { return clock::domain(); }>("thread_domain", "thread_domain() of the calling thread"),

    method<define_signature>("define_signature", "define_signature(duration_ns, forward_ns, backward_ns) -> id"),
    method<launch>("launch", "launch(signature, device): on the current stream"),
    method<emit>("emit", "emit(kind, device, a, b, c)"),

    method<+[](int64_t d) { return int64_t(current_stream(c10::DeviceIndex(d))); }>("stream", "stream(device) -> id"),
    method<+[](int64_t d, int64_t stream) { return int64_t(exchange_current_stream(c10::DeviceIndex(d), stream)); }>(
        "set_stream", "set_stream(device, id) -> previous"),
    method<+[](int64_t d, int64_t priority) { return int64_t(next_pool_stream(c10::DeviceIndex(d), int(priority))); }>(
        "new_stream", "new_stream(device, priority) -> id"),
    method<+[]() { return int64_t(current_device()); }>("device", "device()"),
    method<+[](int64_t d) { set_current_device(c10::DeviceIndex(d)); }>("set_device", "set_device(index)"),
    method<+[](int64_t d) { return int64_t(exchange_current_device(c10::DeviceIndex(d))); }>(
        "exchange_device", "exchange_device(index) -> previous"),
    method<+[](int64_t d) { return int64_t(exchange_current_device(c10::DeviceIndex(d))); }>(
        "maybe_exchange_device", "the same; Dynamo wants two objects"),
    method<num_devices>("num_devices", "num_devices()"),
    method<record_event>("record_event", "record_event(device, stream) -> event"),
    method<+[](int64_t d, int64_t s, int64_t e) { device::wait_event(int(d), s, e); }>(
        "wait_event", "wait_event(device, stream, event)"),
    method<+[](int64_t d, int64_t e) { device::destroy_event(int(d), e); }>("destroy_event",
                                                                          "destroy_event(device, event)"),
    method<+[](int64_t d, int64_t s) { device::synchronize_stream(int(d), s); }>("synchronize_stream",
                                                                               "synchronize_stream(device, stream)"),
    method<synchronize_event>("synchronize_event", "synchronize_event(event)"),
    method<+[](int64_t d) { device::synchronize_device(int(d)); }>("synchronize_device", "synchronize_device(device)"),
    method<+[](int64_t d, int64_t s) { return device::query_stream(int(d), s); }>("query_stream",
                                                                                "query_stream(device, stream)"),
    method<device::query_event>("query_event", "query_event(event)"),
    method<device::elapsed_ms>("elapsed_ms", "elapsed_ms(begin event, end event)"),
    method<capture>("capture", "capture(True); capture(False) -> graph"),
    method<device::is_capturing>("capturing", "capturing()"),
    method<launch_graph>("launch_graph", "launch_graph(graph): on the current stream"),
    method<device::destroy_graph>("destroy_graph", "destroy_graph(graph)"),

    method<device::set_local_answers>("set_local_answers", "set_local_answers(on): off: ask for the end of every kernel"),
    method<+[](int64_t d, int64_t s) { device::mark_unresolved(int(d), s); }>("mark_unresolved",
                                                                            "mark_unresolved(device, stream)"),
    method<+[](int64_t d, int64_t s, int64_t t) { device::resolve_stream(int(d), s, t); }>(
        "resolve_stream", "resolve_stream(device, stream, end_ns)"),
    method<device::resolve_event>("resolve_event", "resolve_event(event, time_ns)"),
    method<stream_state>("stream_state", "stream_state(device, stream) -> (end_ns, is_known)"),
    method<event_state>("event_state", "event_state(event) -> (time_ns, is_known)"),
    method<device::num_known_events>("num_known_events", "num_known_events(): entries of the local table"),

    method<+[](int64_t d) { return memory_control::statistics(c10::DeviceIndex(d)); }>("stats", "stats(device)"),
    method<+[](int64_t d) { return memory_control::snapshot(c10::DeviceIndex(d)); }>("snapshot", "snapshot(device)"),
    method<+[](int64_t d) { return memory_control::history(c10::DeviceIndex(d)); }>("memory_history",
                                                                                  "memory_history(device)"),
    method<memory_control::record_history>("record_memory_history",
                                           "record_memory_history(on, level, max_entries, clear, skipped actions)"),
    method<memory_control::is_history_on>("is_memory_history_on", "is_memory_history_on()"),
    method<memory_history::describe_stack>("describe_stack", "describe_stack(number) -> [(file, line, function), ...]"),
    method<memory_control::observe_out_of_memory>("observe_out_of_memory",
                                                  "observe_out_of_memory(f): f(device, wanted, allowed, free)"),
    method<+[](int64_t d) { return memory_control::settings_of_allocator(c10::DeviceIndex(d)); }>(
        "allocator_settings", "allocator_settings(device)"),
    method<+[](int64_t d, int64_t n) { touch_temporary(size_t(n), c10::DeviceIndex(d)); }>(
        "touch_temporary", "touch_temporary(device, bytes): a block, taken and given back"),
    method<+[](int64_t d) { memory_control::reset_peak(c10::DeviceIndex(d)); }>("reset_peak", "reset_peak(device)"),
    method<+[](int64_t d) { memory_control::reset_accumulated(c10::DeviceIndex(d)); }>("reset_accumulated",
                                                                                     "reset_accumulated(device)"),
    method<memory_control::empty_cache>("empty_cache", "empty_cache()"),
    method<memory_control::set_capacity>("set_memory_capacity", "set_memory_capacity(total_bytes, context_bytes)"),
    method<memory_control::set_limit_bytes>("set_memory_limit_bytes", "what may be reserved per device; -1: no limit"),
    method<memory_control::limit_bytes>("memory_limit", "memory_limit() -> bytes, -1: no limit"),
    method<+[](double f, int64_t d) { memory_control::set_fraction(f, c10::DeviceIndex(d)); }>(
        "set_memory_fraction", "set_memory_fraction(fraction, device)"),
    method<+[](int64_t d) { return memory_control::fraction(c10::DeviceIndex(d)); }>("memory_fraction",
                                                                                   "memory_fraction(device)"),
    method<+[](int64_t d, int64_t n) { memory_control::set_other_bytes(c10::DeviceIndex(d), n); }>(
        "set_other_bytes", "set_other_bytes(device, bytes held outside the allocator)"),
    method<+[](int64_t d) { return memory_control::memory_info(c10::DeviceIndex(d)); }>(
        "memory_info", "memory_info(device) -> (free, total)"),
    method<apply_allocator_settings>("apply_allocator_settings", "as PYTORCH_CUDA_ALLOC_CONF"),
    method<+[](int64_t d, int64_t address) {
      return memory_control::block_bytes(c10::DeviceIndex(d), uint64_t(address));
    }>("block_bytes", "block_bytes(device, address) -> rounded size of a live allocation"),
    method<+[](int64_t d, int64_t a, int64_t b) { memory_control::create_pool(c10::DeviceIndex(d), a, b); }>(
        "create_pool", "create_pool(device, *id)"),
    method<+[](int64_t d, int64_t a, int64_t b, int64_t s) {
      memory_control::begin_pool(c10::DeviceIndex(d), a, b, s);
    }>("begin_pool", "begin_pool(device, *id, stream): allocations of stream; -1: of this thread"),
    method<+[](int64_t d, int64_t a, int64_t b) { memory_control::end_pool(c10::DeviceIndex(d), a, b); }>(
        "end_pool", "end_pool(device, *id)"),
    method<+[](int64_t d, int64_t a, int64_t b) { memory_control::release_pool(c10::DeviceIndex(d), a, b); }>(
        "release_pool", "release_pool(device, *id)"),
    method<+[](int64_t d, int64_t a, int64_t b) {
      return memory_control::pool_use_count(c10::DeviceIndex(d), a, b);
    }>("pool_use_count", "pool_use_count(device, *id)"),
    method<address>("address", "address(tensor) of its storage"),
    method<storage_resize>("storage_resize", "storage_resize(storage, nbytes) -> storage"),
    method<pin_address>("pin", "pin(address, nbytes)"),
    method<unpin_address>("unpin", "unpin(address)"),

    method<python_default_generator>("default_generator", "default_generator(device)"),
    method<philox>("philox", "philox(device, increment): a random kernel of the default generator ran"),

    method<shadow>("shadow", "shadow(tensor) -> CPU view of its known contents, or None"),
    method<shadow_new>("shadow_new", "shadow_new(tensor) -> the same, made when absent"),
    method<shadow_drop>("shadow_drop", "shadow_drop(tensor)"),
    method<shadow_has>("shadow_has", "shadow_has(tensor): known, or pending"),
    method<shadow_pending>("shadow_pending", "shadow_pending(tensor, token)"),
    method<mark_stand_in>("mark_stand_in", "mark_stand_in(tensor): its contents are made up"),
    method<is_stand_in>("is_stand_in", "is_stand_in(tensor)"),
    method<is_small>("small", "small(tensor): may it carry known contents?"),
    method<+[](int64_t f, int64_t i, int64_t b) { set_shadow_limits(size_t(f), size_t(i), size_t(b)); }>(
        "set_shadow_limits", "set_shadow_limits(float, int, byte): bytes"),

    method<fast>("fast", "fast(name, overload, pure_out)"),
    {"plan", plan, METH_VARARGS, "plan(signature, outs, large, philox_increment=0, temporaries=()) -> taken?"},
    method<planned::is_plan_wanted>("pending_plan", "pending_plan()"),
    method<planned::statistics>("plan_stats", "plan_stats() -> (hits, misses)"),
    method<planned::set_enabled>("set_planning", "set_planning(on)"),
    method<planned::set_context>("set_plan_context", "set_plan_context(number): global switches, in every signature"),

    method<make_boxed_work>("make_work", "make_work(device, stream, tensors, blocking) -> boxed c10d Work"),
    method<stash_tensors_in_work>("stash_tensors", "stash_tensors(boxed Work, tensors): kept until somebody waits"),
    {}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "phantora_native", "The simulated CUDA device.", -1, methods};

} // namespace
} // namespace phantora::native

PyMODINIT_FUNC PyInit_phantora_native() {
  PyObject* module = PyModule_Create(&phantora::native::definition);
  if (module && !phantora::native::add_spec_type(module)) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
