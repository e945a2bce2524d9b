// torch's packages have Gloo inside libtorch_cpu and c10d's header of it, but not Gloo's own headers, which that header
// includes. It needs them for pointers only, so these declarations stand in for them: nothing here is ever constructed,
// derived from or called by this program. (Debian's libgloo-dev is a Gloo of 2022, older than torch's.) The build uses
// them only where torch's folder has no gloo/context.h; src/runtime/CMakeLists.txt makes files of Gloo's names of it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport

namespace rendezvous {
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};
}  // namespace rendezvous

}  // namespace gloo
