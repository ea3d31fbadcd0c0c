// Keeps an exiting process from aborting.
#pragma once

namespace phantora::native {

void install_exit_guard();
// For tests: starts a thread in the very state that aborts without the guard.
void start_thread_that_needs_the_gil_at_exit();

} // namespace phantora::native
