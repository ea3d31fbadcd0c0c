// Registering a kernel where there is one already (a CUDA build has all of them) warns; this is meant here.
#pragma once

#include <c10/util/Exception.h>

namespace phantora::native {

class QuietWarnings {
  struct Ignore final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };

 public:
  QuietWarnings() : guard_(&ignore_) {}

 private:
  Ignore ignore_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

} // namespace phantora::native
