#include "planned_operator.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "current.h"
#include "device.h"
#include "device_allocator.h"
#include "generator.h"
#include "python_spec.h"
#include "python_support.h"
#include "python_tensor.h"
#include "quiet.h"
#include "storage_kernels.h"

namespace phantora::native::planned {
namespace {

using c10::IValue;
using Key = c10::SmallVector<int64_t, 64>;

struct NewTensor {
  TensorSpec spec;
  std::string contents; // stand-in bytes given to the new tensor; empty: unknown
};

struct Result {
  int argument = -1; // >= 0: this argument is returned
  bool is_undefined = false;
  bool is_list = false;
  std::vector<NewTensor> tensors;
  size_t temporary_bytes = 0; // a block that the operator takes and gives back once this result is there
};

struct Plan {
  int64_t signature = 0;
  bool is_usable = false;
  bool is_large = false;
  int64_t philox_increment = 0;
  std::vector<Result> results;
};

struct KeyHash {
  using is_transparent = void;
  size_t operator()(std::span<const int64_t> key) const { // FNV-1a over words, with a shift to spread the high bits
    uint64_t hash = 1469598103934665603ULL;
    for (const int64_t word : key) {
      hash = (hash ^ uint64_t(word)) * 1099511628211ULL;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

struct KeyEqual {
  using is_transparent = void;
  bool operator()(std::span<const int64_t> a, std::span<const int64_t> b) const {
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
  }
};

struct Operator {
  std::mutex mutex;
  std::unordered_map<std::vector<int64_t>, Plan, KeyHash, KeyEqual> plans; // node-based: references stay valid
  std::unique_ptr<c10::SafeKernelFunction> python_kernel;
  size_t num_arguments = 0;
  std::vector<char> is_written, is_only_written;
};

// A first call on its way through Python.
struct Wanted {
  Operator* op;
  std::span<const int64_t> key;
  bool is_answered = false;
};

thread_local Wanted* wanted = nullptr;

class WantedScope {
 public:
  explicit WantedScope(Wanted* now) : previous_(wanted) { wanted = now; }
  ~WantedScope() { wanted = previous_; }

 private:
  Wanted* previous_;
};

std::atomic<int64_t> num_hits{0}, num_misses{0};
std::atomic<bool> is_enabled{true};
std::atomic<int64_t> global_context{0};

// First words of what stands in a key, so that different arguments never look alike.
enum Tag : int64_t {
  kTagInt = -1, kTagTrue = -2, kTagFalse = -3, kTagDouble = -4, kTagNone = -5, kTagGenerator = -6, kTagUndefined = -7,
  kTagIntList = -8, kTagTensorList = -9, kTagBoolList = -10, kTagDoubleList = -11, kTagDevice = -12, kTagString = -13,
  kTagList = -14, kTagComplex = -15,
};

// Reads the arguments of one call: its key, its device, and whether some input is really unknown.
class CallReader {
 public:
  Key key;
  int device = -1;
  bool has_unknown_input = false;
  const at::Generator* generator = nullptr;

  // False: such calls cannot be planned.
  bool read(const IValue& value, bool is_only_written) {
    if (value.isTensor()) return read_tensor(value.toTensor(), is_only_written);
    if (value.isInt()) return add(kTagInt, value.toInt());
    if (value.isBool()) return add(value.toBool() ? kTagTrue : kTagFalse);
    // The value of a float does not change shapes or prices (arange & co., where it does, are never planned).
    if (value.isDouble()) return add(kTagDouble);
    if (value.isNone()) return add(kTagNone);
    if (value.isIntList()) return read_ints(value);
    if (value.isTensorList()) return read_tensors(value, is_only_written);
    if (value.isBoolList()) return read_bools(value);
    if (value.isDoubleList()) return add(kTagDoubleList, int64_t(value.toDoubleList().size()));
    if (value.isDevice()) return read_device(value.toDevice());
    if (value.isString()) return add(kTagString, int64_t(std::hash<std::string>()(value.toStringRef())));
    if (value.isComplexDouble()) return add(kTagComplex);
    if (value.isGenerator()) {
      generator_ = value.toGenerator();
      generator = &generator_;
      return add(kTagGenerator);
    }
    if (value.isList()) return read_list(value, is_only_written);
    return false;
  }

 private:
  bool add(int64_t first) {
    key.push_back(first);
    return true;
  }
  bool add(int64_t first, int64_t second) {
    key.push_back(first);
    return add(second);
  }

  bool read_tensor(const at::Tensor& tensor, bool is_only_written) {
    if (!tensor.defined()) return add(kTagUndefined);
    if (!tensor.has_storage()) return false;
    const auto dtype = tensor.scalar_type();
    if (!tensor.is_cuda()) { // only wrapped numbers and the like: the contents of a CPU tensor may matter
      if (tensor.dim() != 0) return false;
      return add(int64_t(dtype) << 8 | 1 << 22 | (tensor.unsafeGetTensorImpl()->is_wrapped_number() ? 1 << 23 : 0));
    }
    if (device < 0) device = tensor.device().index();
    const Block* block = block_of(tensor);
    if (!is_only_written && (!block || block->contents.is_unknown())) has_unknown_input = true;
    const bool is_small = tensor.storage().nbytes() <= shadow_limit_bytes(dtype);
    add(int64_t(dtype) << 8 | tensor.dim() | 1 << 21 | (is_small ? 1 << 20 : 0) | (tensor.is_conj() ? 1 << 24 : 0) |
        (tensor.is_neg() ? 1 << 25 : 0) | (tensor.device().index() != device ? 1 << 26 : 0));
    key.append(tensor.sizes().begin(), tensor.sizes().end());
    key.append(tensor.strides().begin(), tensor.strides().end());
    return true;
  }
  bool read_tensors(const IValue& value, bool is_only_written) {
    const auto tensors = value.toTensorList();
    add(kTagTensorList, int64_t(tensors.size()));
    for (const at::Tensor tensor : tensors)
      if (!read_tensor(tensor, is_only_written)) return false;
    return true;
  }
  bool read_ints(const IValue& value) {
    const auto numbers = value.toIntList();
    add(kTagIntList, int64_t(numbers.size()));
    for (const int64_t number : numbers) add(number);
    return true;
  }
  bool read_bools(const IValue& value) {
    const auto flags = value.toBoolList();
    add(kTagBoolList, int64_t(flags.size()));
    for (const bool flag : flags) add(flag);
    return true;
  }
  bool read_list(const IValue& value, bool is_only_written) {
    const auto items = value.toListRef();
    add(kTagList, int64_t(items.size()));
    for (const IValue& item : items)
      if (!read(item, is_only_written)) return false;
    return true;
  }
  bool read_device(c10::Device where) {
    if (where.is_cuda() && device < 0) device = index_of(where);
    return add(kTagDevice, int64_t(where.type()) << 8 | (where.is_cuda() ? index_of(where) == device : where.index()));
  }

  at::Generator generator_;
};

at::Tensor make_tensor(const NewTensor& wanted_tensor, int device) {
  at::Tensor tensor = wanted_tensor.spec.make(c10::DeviceIndex(device));
  Block* block = wanted_tensor.contents.empty() ? nullptr : block_of(tensor);
  if (block) {
    block->contents.set_bytes(wanted_tensor.contents);
    block->contents.mark_stand_in();
  }
  return tensor;
}

IValue make_result(const Result& result, at::ArrayRef<IValue> arguments, int device) {
  if (result.argument >= 0) return arguments[size_t(result.argument)];
  if (result.is_undefined) return at::Tensor();
  if (!result.is_list) return make_tensor(result.tensors.front(), device);
  c10::List<at::Tensor> list;
  list.reserve(result.tensors.size());
  for (const NewTensor& item : result.tensors) list.push_back(make_tensor(item, device));
  return list;
}

void forget_contents(const at::Tensor& tensor) {
  if (Block* block = block_of(tensor)) block->contents.forget();
}

void forget_written(const Operator& op, at::ArrayRef<IValue> arguments) {
  for (size_t i = 0; i < op.num_arguments; ++i) {
    if (!op.is_written[i]) continue;
    if (arguments[i].isTensor()) forget_contents(arguments[i].toTensor());
    if (!arguments[i].isTensorList()) continue;
    const auto tensors = arguments[i].toTensorList();
    for (const at::Tensor tensor : tensors) forget_contents(tensor);
  }
}

void run(const Plan& plan, const Operator& op, const CallReader& call, torch::jit::Stack& stack) {
  const auto arguments = torch::jit::last(stack, op.num_arguments);
  c10::SmallVector<IValue, 4> results;
  for (const Result& result : plan.results) {
    results.push_back(make_result(result, arguments, call.device));
    if (result.temporary_bytes) touch_temporary(result.temporary_bytes, c10::DeviceIndex(call.device));
  }
  forget_written(op, arguments);
  if (plan.philox_increment) {
    const auto& generator = call.generator ? *call.generator : default_generator(c10::DeviceIndex(call.device));
    advance_philox(generator, uint64_t(plan.philox_increment));
  }
  device::launch(plan.signature, call.device, current_stream(c10::DeviceIndex(call.device)));
  torch::jit::drop(stack, op.num_arguments);
  for (IValue& result : results) stack.push_back(std::move(result));
}

class PlanningKernel final : public c10::OperatorKernel {
 public:
  explicit PlanningKernel(Operator* op) : op_(op) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    CallReader call;
    if (!is_enabled || !read(call, *stack)) return run_python(handle, keys, stack, nullptr);
    const Plan* plan = find(call);
    if (!plan) {
      num_misses.fetch_add(1, std::memory_order_relaxed);
      Wanted first{op_, {call.key.data(), call.key.size()}};
      return run_python(handle, keys, stack, &first);
    }
    if (!plan->is_usable || !(call.has_unknown_input || plan->is_large))
      return run_python(handle, keys, stack, nullptr);
    num_hits.fetch_add(1, std::memory_order_relaxed);
    run(*plan, *op_, call, *stack);
  }

 private:
  bool read(CallReader& call, const torch::jit::Stack& stack) const {
    const auto arguments = torch::jit::last(stack, op_->num_arguments);
    call.key.push_back(global_context.load(std::memory_order_relaxed));
    for (size_t i = 0; i < op_->num_arguments; ++i)
      if (!call.read(arguments[i], op_->is_only_written[i])) return false;
    return call.device >= 0;
  }
  const Plan* find(const CallReader& call) const {
    std::lock_guard<std::mutex> lock(op_->mutex);
    const auto entry = op_->plans.find(std::span<const int64_t>(call.key.data(), call.key.size()));
    return entry == op_->plans.end() ? nullptr : &entry->second;
  }
  void run_python(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                  Wanted* first) const {
    const WantedScope scope(first);
    const clock::SameCallerScope caller;
    op_->python_kernel->callBoxed(handle, keys, stack);
  }

  Operator* const op_;
};

// A Python exception is set when this returns nothing.
std::optional<NewTensor> parse_new_tensor(PyObject* item) {
  if (!PyTuple_Check(item)) {
    const TensorSpec* spec = spec_of(item);
    return spec ? std::optional<NewTensor>({*spec, {}}) : std::nullopt;
  }
  const TensorSpec* spec = PyTuple_GET_SIZE(item) == 2 ? spec_of(PyTuple_GET_ITEM(item, 0)) : nullptr;
  if (!spec || !is_tensor(PyTuple_GET_ITEM(item, 1))) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "plan: a pair is (Spec, CPU tensor)");
    return std::nullopt;
  }
  const at::Tensor& contents = tensor_of(PyTuple_GET_ITEM(item, 1));
  TORCH_CHECK(contents.is_cpu() && contents.is_contiguous() && contents.nbytes() == spec->num_bytes,
              "plan: contents do not fit the specification");
  return NewTensor{*spec, std::string(static_cast<const char*>(contents.const_data_ptr()), spec->num_bytes)};
}

std::optional<Result> parse_result(PyObject* item) {
  Result result;
  result.is_undefined = item == Py_None;
  if (result.is_undefined) return result;
  if (PyLong_Check(item)) {
    result.argument = int(PyLong_AsLong(item));
    return result;
  }
  result.is_list = PyList_Check(item);
  if (!result.is_list) {
    auto tensor = parse_new_tensor(item);
    if (!tensor) return std::nullopt;
    result.tensors.push_back(std::move(*tensor));
    return result;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(item); ++i) {
    auto tensor = parse_new_tensor(PyList_GET_ITEM(item, i));
    if (!tensor) return std::nullopt;
    result.tensors.push_back(std::move(*tensor));
  }
  return result;
}

bool parse_results(PyObject* outs, std::vector<Result>& results) {
  Reference sequence(PySequence_Fast(outs, "plan: outs is a sequence or None"));
  if (!sequence) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence.get()); ++i) {
    auto result = parse_result(PySequence_Fast_GET_ITEM(sequence.get(), i));
    if (!result) return false;
    results.push_back(std::move(*result));
  }
  return true;
}

bool parse_temporaries(PyObject* bytes, std::vector<Result>& results) {
  Reference sequence(PySequence_Fast(bytes, "plan: temporaries is a sequence"));
  if (!sequence) return false;
  const size_t count = std::min(size_t(PySequence_Fast_GET_SIZE(sequence.get())), results.size());
  for (size_t i = 0; i < count; ++i)
    results[i].temporary_bytes = PyLong_AsSize_t(PySequence_Fast_GET_ITEM(sequence.get(), Py_ssize_t(i)));
  return !PyErr_Occurred();
}

} // namespace

void put_in_front(const char* name, const char* overload, int pure_out) {
  const std::string full_name = std::string(name).find("::") == std::string::npos ? std::string("aten::") + name : name;
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto handle = dispatcher.findSchemaOrThrow(full_name.c_str(), overload);
  auto* op = new Operator; // as long as the kernel: for ever
  for (const auto& argument : handle.schema().arguments()) {
    const bool is_written = argument.alias_info() && argument.alias_info()->isWrite();
    const bool is_pure_out = int(op->is_written.size()) == pure_out;
    op->is_written.push_back(is_written);
    op->is_only_written.push_back((is_written && argument.kwarg_only()) || is_pure_out);
  }
  op->num_arguments = op->is_written.size();
  op->python_kernel = std::make_unique<c10::SafeKernelFunction>(
      handle.getComputedKernelForDispatchKey(c10::DispatchKey::CUDA));
  const QuietWarnings quiet;
  auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<PlanningKernel>(op));
  new c10::RegistrationHandleRAII(dispatcher.registerImpl(handle.operator_name(), c10::DispatchKey::CUDA,
                                                          std::move(kernel), std::nullopt, nullptr, "phantora"));
}

bool plan(int64_t signature, PyObject* outs, bool large, int64_t philox_increment, PyObject* temporaries) {
  if (!is_plan_wanted()) return false;
  Plan answer{signature, outs != Py_None, large, philox_increment, {}};
  if (answer.is_usable && !parse_results(outs, answer.results)) return false; // with a Python exception
  if (temporaries && !parse_temporaries(temporaries, answer.results)) return false;
  std::lock_guard<std::mutex> lock(wanted->op->mutex);
  wanted->op->plans.emplace(std::vector<int64_t>(wanted->key.begin(), wanted->key.end()), std::move(answer));
  wanted->is_answered = true;
  return true;
}

bool is_plan_wanted() { return wanted && !wanted->is_answered; }

std::pair<int64_t, int64_t> statistics() { return {num_hits, num_misses}; }

void set_enabled(bool on) { is_enabled = on; }

void set_context(int64_t context) { global_context = context; }

} // namespace phantora::native::planned
