// The processes that train one model together, as torchrun starts them, behind one small interface: who they are, sums,
// broadcasts and agreement. On CPUs they talk through Gloo, on GPUs gradients go through NCCL and everything small
// through Gloo; both are torch's own. A process that was not started by torchrun is alone: nothing is connected, and
// every call returns what it was given.
//
// Every call but rank(), size() and the like is collective: all processes make the same calls in the same order. A
// process that dies closes its connections, so that the others get LostProcess within seconds, whatever they wait for.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace contextpool::runtime {

// What torchrun says in the environment.
struct Launch {
  int rank = 0, size = 1, local_rank = 0;
  int restarts = 0;          // of all processes, after a failure (--max-restarts)
  std::string address = {};  // of the store where the processes meet
  int port = 0;
  bool store_runs = false;  // torchrun itself keeps the store; else the first process does
};

// From RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which all have to be there. Throws if they make no sense.
std::optional<Launch> launch_from_environment();

// The device of this process: "auto" and "cuda" are the GPU of its number on the machine.
std::string device_of(const Launch& launch, const std::string& asked);

// Another process ended or cannot be reached. The group is unusable, and so are threads that wait in it: the program
// says so and ends without waiting for them.
class LostProcess : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The sum of the parameters' gradients over all processes, in buckets that are sent during the backward pass.
class GradientSum {
 public:
  virtual ~GradientSum() = default;
  // loss.backward(), after which every gradient, with what was in it before, is the sum over all processes: the same
  // bits in each. Parameters without a gradient in any process have none.
  virtual void backward(const torch::Tensor& loss) = 0;
};

class Processes {
 public:
  Processes();  // this one alone
  explicit Processes(const Launch& launch);
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  int rank() const { return launch_.rank; }
  int size() const { return launch_.size; }
  bool first() const { return rank() == 0; }  // which writes files and scores
  bool alone() const { return group_ == nullptr; }

  // What a process of this job noted, in an earlier attempt too where torchrun keeps the store. Not collective.
  void note(const std::string& key, const std::string& value);
  std::optional<std::string> noted(const std::string& key);

  // Before anything below: connects the processes that compute on `device`.
  void connect(torch::Device device);

  std::vector<double> sum(std::vector<double> values);
  void sum_in_place(const torch::Tensor& tensor);  // on its device
  bool any(bool value);
  void broadcast(const torch::Tensor& tensor, int from);  // into the tensor
  void barrier();
  // Throws in all processes unless they have the same, and says who has what: "the step", "120".
  void check_same(const std::string& what, const std::string& value);
  // Of the parameters that train; nothing where this process is alone.
  std::unique_ptr<GradientSum> sum_gradients(const std::vector<torch::Tensor>& parameters);

 private:
  class Group;
  Launch launch_;
  std::shared_ptr<Group> group_;
};

}  // namespace contextpool::runtime
