// Page-locked host memory: which CPU addresses are pinned. The memory itself is ordinary.
#pragma once

#include <cstddef>

#include <c10/core/Allocator.h>

namespace phantora::native {

c10::Allocator& pinned_allocator();
void pin(const void* address, size_t num_bytes); // cudaHostRegister
void unpin(const void* address);
bool is_pinned(const void* address); // also for addresses inside a pinned range

void lock_pinned_for_fork();
void unlock_pinned_after_fork();

} // namespace phantora::native
