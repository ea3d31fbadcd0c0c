// Known contents of simulated memory. A block without memory may carry a CPU copy of its bytes (the "shadow"): what was
// copied from the CPU, and what was computed from such. Contents can also be pending: they will be known, but come from
// another rank and are fetched only when somebody looks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace phantora::native {

class Contents {
 public:
  // Nothing known, nothing to come.
  bool is_unknown() const { return !shadow_.defined() && !pending_; }
  void forget() {
    if (shadow_.defined()) shadow_.reset();
    if (pending_) pending_.reset();
    is_stand_in_ = false;
  }

  // A CPU tensor that aliases the shadow with the shape of `like`; undefined when the contents are not known. Fetches
  // pending contents (takes the GIL).
  at::Tensor view(const at::Tensor& like, size_t storage_bytes);
  // The same for writing: made (zeroed where `like` does not cover it) when absent. When `like` covers the storage,
  // pending contents are dropped unseen.
  at::Tensor view_for_writing(const at::Tensor& like, size_t storage_bytes);
  void set_bytes(const std::string& bytes);
  // A stand-in is a value that the simulator made up; reading it is counted by the kernels in Python.
  void mark_stand_in() { is_stand_in_ = shadow_.defined(); }
  bool is_stand_in() const { return is_stand_in_; }
  void add_pending(const at::Tensor& like, int64_t token);
  // After the storage changed its size.
  void move_to(Contents& target, size_t old_bytes, size_t new_bytes);

 private:
  struct Pending {
    int64_t token;
    c10::SmallVector<int64_t, 5> sizes, strides;
    int64_t storage_offset;
    c10::ScalarType dtype;
  };
  void resolve_pending(size_t storage_bytes);
  at::Tensor alias(c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) const;
  void make_shadow(size_t storage_bytes, bool zeroed);

  at::Tensor shadow_; // flat bytes
  bool is_stand_in_ = false;
  std::unique_ptr<std::vector<Pending>> pending_;
};

// Largest storage (bytes) whose contents are followed, by kind of element.
size_t shadow_limit_bytes(c10::ScalarType dtype);
void set_shadow_limits(size_t floating_bytes, size_t integer_bytes, size_t byte_bytes);

} // namespace phantora::native
