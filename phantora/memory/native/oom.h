// What an out-of-memory error says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

namespace phantora::memory {

// Every number of torch's message, in bytes. Filled when an allocation fails.
struct Oom {
  int device = 0;
  size_t alloc_bytes = 0;               // size of the segment that could not be had, not of the request
  size_t total_bytes = 0;               // of the device
  size_t free_bytes = 0;                // as cudaMemGetInfo would say
  size_t process_bytes = 0;             // context, segments and other memory of this process
  std::optional<size_t> allowed_bytes;  // set by set_memory_fraction / set_memory_limit
  size_t allocated_bytes = 0;           // in tensors
  size_t private_pool_bytes = 0;        // free blocks of private pools
  size_t reserved_bytes = 0;            // in segments
  bool beyond_any_device = false;       // the request was 1 EiB or more
};

// As c10::CachingAllocator::format_size does: "512 bytes", "1.50 KiB", "2.00 MiB", "20.00 GiB".
inline std::string format_size(size_t bytes) {
  char text[48];
  const double value = static_cast<double>(bytes);
  if (bytes <= 1024)
    std::snprintf(text, sizeof text, "%zu bytes", bytes);
  else if (bytes <= size_t{1} << 20)
    std::snprintf(text, sizeof text, "%.2f KiB", value / 1024);
  else if (bytes <= size_t{1} << 30)
    std::snprintf(text, sizeof text, "%.2f MiB", value / (1 << 20));
  else
    std::snprintf(text, sizeof text, "%.2f GiB", value / (1 << 30));
  return text;
}

// Text of torch.OutOfMemoryError, word for word (c10/cuda/CUDACachingAllocator.cpp, DeviceCachingAllocator::malloc).
inline std::string oom_message(const Oom& oom) {
  if (oom.beyond_any_device) return "CUDA out of memory. Tried to allocate more than 1EB memory.";
  std::string text =
      "CUDA out of memory. Tried to allocate " + format_size(oom.alloc_bytes) + ". GPU " + std::to_string(oom.device) +
      " has a total capacity of " + format_size(oom.total_bytes) + " of which " + format_size(oom.free_bytes) +
      " is free. Including non-PyTorch memory, this process has " + format_size(oom.process_bytes) + " memory in use. ";
  if (oom.allowed_bytes) text += format_size(*oom.allowed_bytes) + " allowed; ";
  text += "Of the allocated memory " + format_size(oom.allocated_bytes + oom.private_pool_bytes) +
          " is allocated by PyTorch, ";
  if (oom.private_pool_bytes > 0)
    text += "with " + format_size(oom.private_pool_bytes) + " allocated in private pools (e.g., CUDA Graphs), ";
  return text + "and " + format_size(oom.reserved_bytes - oom.allocated_bytes - oom.private_pool_bytes) +
         " is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
         " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory"
         " Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
         "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";
}

}  // namespace phantora::memory
