#include "contents.h"

#include <cstring>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "sink.h"

namespace phantora::native {
namespace {

// Frameworks need these (object collectives carry whole pickles as bytes, MoE routing maps are integers).
size_t floating_limit_bytes = 16 << 10;
size_t integer_limit_bytes = 4 << 20;
size_t byte_limit_bytes = 256 << 20;

bool covers(const at::Tensor& tensor, size_t storage_bytes) {
  return size_t(tensor.numel()) * tensor.itemsize() == storage_bytes && tensor.is_non_overlapping_and_dense();
}

at::Tensor empty_bytes(size_t size) {
  return at::Tensor(at::detail::empty_cpu({int64_t(size)}, at::ScalarType::Byte));
}

} // namespace

at::Tensor Contents::alias(c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                           int64_t offset) const {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(shadow_.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

void Contents::make_shadow(size_t storage_bytes, bool zeroed) {
  shadow_ = empty_bytes(storage_bytes);
  if (zeroed) std::memset(shadow_.mutable_data_ptr(), 0, storage_bytes);
}

at::Tensor Contents::view(const at::Tensor& like, size_t storage_bytes) {
  if (pending_) resolve_pending(storage_bytes);
  if (!shadow_.defined()) return {};
  return alias(like.scalar_type(), like.sizes(), like.strides(), like.storage_offset());
}

at::Tensor Contents::view_for_writing(const at::Tensor& like, size_t storage_bytes) {
  const bool is_whole = covers(like, storage_bytes);
  if (is_whole) is_stand_in_ = false;
  if (pending_ && is_whole) pending_.reset();
  if (pending_) resolve_pending(storage_bytes);
  if (!shadow_.defined()) make_shadow(storage_bytes, !is_whole);
  return alias(like.scalar_type(), like.sizes(), like.strides(), like.storage_offset());
}

void Contents::set_bytes(const std::string& bytes) {
  pending_.reset();
  make_shadow(bytes.size(), false);
  std::memcpy(shadow_.mutable_data_ptr(), bytes.data(), bytes.size());
}

void Contents::add_pending(const at::Tensor& like, int64_t token) {
  if (covers(like, like.storage().nbytes())) forget();
  if (!pending_) pending_ = std::make_unique<std::vector<Pending>>();
  pending_->push_back({token, c10::SmallVector<int64_t, 5>(like.sizes()), c10::SmallVector<int64_t, 5>(like.strides()),
                       like.storage_offset(), like.scalar_type()});
}

void Contents::resolve_pending(size_t storage_bytes) {
  // Taken out first: fetching runs Python, which may come back here.
  const std::vector<Pending> waiting = std::move(*pending_);
  pending_.reset();
  c10::impl::ExcludeDispatchKeyGuard plain_cpu(c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
                                               c10::python_ks |
                                               c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView));
  for (const Pending& part : waiting) {
    const at::TensorBase fetched = sink::fetch(part.token);
    if (!fetched.defined()) return forget();
    if (!shadow_.defined()) make_shadow(storage_bytes, true);
    at::Tensor target = alias(part.dtype, part.sizes, part.strides, part.storage_offset);
    TORCH_CHECK(size_t(target.numel()) * target.itemsize() == fetched.nbytes() && fetched.is_contiguous(),
                "phantora: fetched contents have ", fetched.nbytes(), " bytes, the tensor has ",
                size_t(target.numel()) * target.itemsize());
    if (target.is_contiguous()) {
      std::memcpy(target.mutable_data_ptr(), fetched.const_data_ptr(), fetched.nbytes());
    } else {
      target.copy_(at::from_blob(fetched.mutable_data_ptr(), target.sizes(), target.options()));
    }
  }
}

void Contents::move_to(Contents& target, size_t old_bytes, size_t new_bytes) {
  if (shadow_.defined()) {
    target.make_shadow(new_bytes, true);
    std::memcpy(target.shadow_.mutable_data_ptr(), shadow_.const_data_ptr(), std::min(old_bytes, new_bytes));
  }
  target.is_stand_in_ = is_stand_in_;
  if (pending_ && new_bytes >= old_bytes) target.pending_ = std::move(pending_);
  forget();
}

size_t shadow_limit_bytes(c10::ScalarType dtype) {
  if (c10::isFloatingType(dtype) || c10::isComplexType(dtype)) return floating_limit_bytes;
  return dtype == c10::ScalarType::Byte ? byte_limit_bytes : integer_limit_bytes;
}

void set_shadow_limits(size_t floating_bytes, size_t integer_bytes, size_t byte_bytes) {
  floating_limit_bytes = floating_bytes;
  integer_limit_bytes = integer_bytes;
  byte_limit_bytes = byte_bytes;
}

} // namespace phantora::native
