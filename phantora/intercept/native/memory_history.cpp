#include "memory_history.h"

#include <map>
#include <mutex>

#include "python_support.h"

namespace phantora::native::memory_history {
namespace {

struct Frame {
  PyCodeObject* code;
  int line;
  friend bool operator<(const Frame& a, const Frame& b) { return a.code != b.code ? a.code < b.code : a.line < b.line; }
};
using Stack = std::vector<Frame>;

std::mutex& settings_mutex = *new std::mutex;
Settings& current = *new Settings;
// Only touched with the GIL held.
auto& numbers = *new std::map<Stack, StackId>;
auto& stacks = *new std::vector<Stack>;

// Owned references to the code of every frame of the calling thread.
Stack walk() {
  Stack stack;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame) {
    stack.push_back({PyFrame_GetCode(frame), PyFrame_GetLineNumber(frame)});
    PyFrameObject* caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
  return stack;
}

PyObject* new_reference(PyObject* object) {
  Py_INCREF(object);
  return object;
}

} // namespace

Settings settings() {
  std::lock_guard<std::mutex> guard(settings_mutex);
  return current;
}

void set(const Settings& settings) {
  std::lock_guard<std::mutex> guard(settings_mutex);
  current = settings;
}

StackId take_stack(int level) {
  const Settings now = settings();
  if (!now.is_on || now.level < level || interpreter_is_finalizing()) return 0;
  const WithGil gil;
  Stack stack = walk();
  const auto [entry, is_new] = numbers.try_emplace(std::move(stack), StackId(stacks.size()) + 1);
  if (is_new) {
    stacks.push_back(entry->first);
  } else {
    for (const Frame& frame : stack) Py_DECREF(frame.code); // try_emplace left it as it was
  }
  return entry->second;
}

PyObject* describe_stack(StackId number) {
  Reference list(PyList_New(0));
  if (!list || number <= 0 || size_t(number) > stacks.size()) return list ? new_reference(list.get()) : nullptr;
  for (const Frame& frame : stacks[size_t(number) - 1]) {
    Reference row(Py_BuildValue("(OiO)", frame.code->co_filename, frame.line, frame.code->co_name));
    if (!row || PyList_Append(list.get(), row.get()) < 0) return nullptr;
  }
  return new_reference(list.get());
}

// The stack that an entry shows, and what is remembered for later ones.
StackId History::follow(const memory::TraceEvent& event, StackId stack) {
  using Action = memory::TraceEvent::Action;
  switch (event.action) {
    case Action::kAlloc:
      stack ? (void)(blocks_[event.address] = stack) : (void)blocks_.erase(event.address);
      return stack;
    case Action::kFreeRequested:
    case Action::kFreeCompleted: {
      const StackId shown = stack ? stack : find(blocks_, event.address);
      if (event.action == Action::kFreeCompleted) blocks_.erase(event.address);
      return shown;
    }
    case Action::kSegmentAlloc:
    case Action::kSegmentMap:
      stack ? (void)(segments_[event.address] = stack) : (void)segments_.erase(event.address);
      return stack;
    case Action::kSegmentFree:
    case Action::kSegmentUnmap: {
      const StackId shown = stack ? stack : find(segments_, event.address);
      segments_.erase(event.address);
      return shown;
    }
    default:
      return stack;
  }
}

void History::add(const memory::TraceEvent& event, StackId stack, int64_t time_ns) {
  const Settings now = settings();
  if (!now.is_on && blocks_.empty() && segments_.empty()) return;
  const StackId shown = follow(event, stack);
  if (!now.is_on || (now.skipped_actions >> event.action & 1)) return;
  entries_.push_back({event, time_ns, now.level >= kAlloc ? shown : 0});
  while (entries_.size() > now.max_entries) entries_.pop_front();
}

} // namespace phantora::native::memory_history
