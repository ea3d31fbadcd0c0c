// An autograd device thread may drop the last reference to a GraphTask after Py_Finalize began; it then asks for the
// GIL inside a noexcept destructor (SafePyObject). CPython before 3.14 ends such a thread by pthread_exit(), whose
// forced unwinding meets the noexcept and calls std::terminate: abort, exit code 134, after all work was done. As 3.14
// does, park the thread instead; the exit code stays what the program said.
#include <Python.h>

#include "exit_guard.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <thread>

#include "python_support.h"

namespace phantora::native {
namespace {

std::terminate_handler previous_handler = nullptr;

[[noreturn]] void park_or_terminate() {
  // Forced unwinding is no C++ exception.
  if (interpreter_is_finalizing() && !std::current_exception())
    for (;;) pause();
  if (previous_handler) previous_handler();
  std::abort();
}

} // namespace

void install_exit_guard() {
  if (!previous_handler) previous_handler = std::set_terminate(park_or_terminate);
}

void start_thread_that_needs_the_gil_at_exit() {
  std::thread([]() noexcept {
    while (!interpreter_is_finalizing()) usleep(100);
    PyGILState_Ensure();
  }).detach();
}

} // namespace phantora::native
