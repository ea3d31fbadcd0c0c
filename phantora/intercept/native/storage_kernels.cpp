#include "storage_kernels.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/detach_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "current.h"
#include "device.h"
#include "device_allocator.h"
#include "quiet.h"

namespace phantora::native {
namespace {

using at::IntArrayRef;
using at::Tensor;

constexpr c10::DispatchKeySet kCudaKeys(c10::DispatchKey::CUDA);

at::ScalarType dtype_of(std::optional<at::ScalarType> dtype) {
  return dtype.value_or(c10::get_default_dtype_as_scalartype());
}

c10::DeviceIndex index_or_current(std::optional<c10::Device> device) {
  return device ? index_of(*device) : current_device();
}

Tensor empty(IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const CurrentDeviceScope scope(index_or_current(device)); // the allocator takes the current device
  return at::detail::empty_generic(size, &device_allocator(), kCudaKeys, dtype_of(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  const CurrentDeviceScope scope(index_or_current(device));
  return at::detail::empty_strided_generic(size, stride, &device_allocator(), kCudaKeys, dtype_of(dtype));
}

const Tensor& resize_(const Tensor& self, IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != size) {
    const size_t needed_bytes =
        at::detail::computeStorageNbytesContiguous(size, impl->itemsize(), size_t(impl->storage_offset()));
    auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    if (storage->nbytes() < needed_bytes) resize_storage(*storage, needed_bytes);
    impl->set_sizes_contiguous(size);
  }
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  const bool is_contiguous = stride.empty() && !size.empty();
  const size_t needed_bytes =
      is_contiguous ? at::detail::computeStorageNbytesContiguous(size, self.itemsize(), size_t(offset))
                    : at::detail::computeStorageNbytes(size, stride, self.itemsize(), size_t(offset));
  auto* impl = self.unsafeGetTensorImpl();
  if (impl->unsafe_storage().unsafeGetStorageImpl() != source.unsafeGetStorageImpl()) {
    TORCH_CHECK(source.device() == self.device(), "Attempted to set the storage of a tensor on device \"",
                self.device(), "\" to a storage on different device \"", source.device(),
                "\".  This is no longer allowed; the devices must match.");
    impl->set_storage_keep_dtype(source);
  }
  if (source.nbytes() < needed_bytes) resize_storage(*source.unsafeGetStorageImpl(), needed_bytes);
  if (is_contiguous) {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage source) {
  const auto num_elements = int64_t(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {num_elements}, {1});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_empty(Tensor& self) {
  at::Storage nothing(at::Storage::use_byte_size_t(), 0, allocate(0, self.device().index()), &device_allocator(),
                      /*resizable=*/true);
  return set_storage(self, std::move(nothing), 0, {0}, {1});
}

// Views only alias: ATen's own implementations fit any device. What is ours is their host time.
template <auto& function, Kind kind = Kind::kView>
struct Charged;

template <typename Result, typename... Arguments, Result (&function)(Arguments...), Kind kind>
struct Charged<function, kind> {
  static Result call(Arguments... arguments) {
    device::charge_view(kind);
    return function(std::forward<Arguments>(arguments)...);
  }
};

void record_stream_kernel(Tensor& self, c10::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

} // namespace

TensorSpec TensorSpec::of(const at::Tensor& like) {
  TensorSpec spec;
  spec.sizes.assign(like.sizes().begin(), like.sizes().end());
  spec.strides.assign(like.strides().begin(), like.strides().end());
  spec.dtype = like.dtype();
  spec.num_bytes = at::detail::computeStorageNbytes(like.sizes(), like.strides(), like.dtype().itemsize());
  return spec;
}

at::Tensor TensorSpec::make(c10::DeviceIndex device) const {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), num_bytes,
                                                       allocate(num_bytes, device), &device_allocator(),
                                                       /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), kCudaKeys, dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(IntArrayRef(sizes.data(), sizes.size()),
                                                      IntArrayRef(strides.data(), strides.size()));
  return tensor;
}

void resize_storage(c10::StorageImpl& storage, size_t num_bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  const size_t old_bytes = storage.nbytes();
  if (old_bytes == num_bytes) return;
  // The old memory is freed after the new one was taken, because the real one is copied from it.
  c10::DataPtr data = allocate(num_bytes, storage.device().index());
  Block* old_block = block_of(storage.data_ptr());
  Block* new_block = block_of(data);
  if (old_block && new_block) old_block->contents.move_to(new_block->contents, old_bytes, num_bytes);
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(num_bytes);
}

void register_storage_kernels() {
  const QuietWarnings quiet;
  static auto& library = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("resize_", TORCH_FN(resize_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  library.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  library.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  library.impl("set_", TORCH_FN(set_empty));
  library.impl("record_stream", TORCH_FN(record_stream_kernel));
  library.impl("as_strided", TORCH_FN((Charged<at::native::as_strided_tensorimpl>::call)));
  library.impl("view", TORCH_FN((Charged<at::native::view>::call)));
  library.impl("view.dtype", TORCH_FN((Charged<at::native::view_dtype>::call)));
  library.impl("view_as_real", TORCH_FN((Charged<at::native::view_as_real>::call)));
  library.impl("view_as_complex", TORCH_FN((Charged<at::native::view_as_complex>::call)));
  library.impl("_reshape_alias", TORCH_FN((Charged<at::native::_reshape_alias>::call)));
  library.impl("unfold", TORCH_FN((Charged<at::native::unfold>::call)));
  library.impl("alias", TORCH_FN((Charged<at::native::alias>::call)));
  library.impl("detach", TORCH_FN((Charged<at::native::detach, Kind::kGradient>::call)));
}

} // namespace phantora::native
