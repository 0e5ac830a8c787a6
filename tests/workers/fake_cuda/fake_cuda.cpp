// A CUDA device for fake tensors on a torch without CUDA: nothing is allocated, copied or launched.
// torch.cuda.is_available() stays False.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace at {
struct FakeCUDAHooks : public CUDAHooksInterface {
  FakeCUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }  // else autograd refuses the device
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return false; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  c10::DeviceIndex deviceCount() const override { return 0; }
};
C10_REGISTER_CREATOR(CUDAHooksRegistry, CUDAHooks,
                     [](CUDAHooksArgs args) -> std::unique_ptr<CUDAHooksInterface> {
                       return std::make_unique<FakeCUDAHooks>(args);
                     })
}  // namespace at

namespace {
const c10::Device FIRST(c10::DeviceType::CUDA, 0);

struct Guard : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device exchangeDevice(c10::Device) const override { return FIRST; }
  c10::Device getDevice() const override { return FIRST; }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, FIRST);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return getStream(stream.device());
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
const Guard guard{};
const struct Registration {
  Registration() { c10::impl::registerDeviceGuard(c10::DeviceType::CUDA, &guard); }
} registration;
}  // namespace
