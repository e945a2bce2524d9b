// Processes that are threads here: each has its own connections, as a process would.
#include "contextpool/runtime/processes.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <thread>

namespace contextpool::runtime {
namespace {

int free_port() {
  const int s = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(s, reinterpret_cast<sockaddr*>(&address), size), 0);
  ::getsockname(s, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(s);
  return ntohs(address.sin_port);
}

// Calls `body` in each of some processes; the error of each, or "".
std::vector<std::string> together(int size, const std::function<void(Processes&)>& body) {
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  const auto port = free_port();
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Processes processes({.rank = rank, .size = size, .local_rank = rank, .address = "127.0.0.1", .port = port});
        processes.connect(torch::kCPU);
        body(processes);
        processes.barrier();  // the first one keeps the store
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

const std::vector<std::string> kGood = {"", ""};

TEST(Processes, OneAloneChangesNothing) {
  Processes one;
  one.connect(torch::kCPU);
  const auto x = torch::ones({2});
  one.sum_in_place(x);
  one.broadcast(x, 0);
  one.check_same("step", "3");
  EXPECT_TRUE(x.equal(torch::ones({2})));
  EXPECT_EQ(one.sum({2, 3}), (std::vector<double>{2, 3}));
  EXPECT_TRUE(one.any(true));
  EXPECT_FALSE(one.any(false));
  EXPECT_EQ(one.noted("run"), std::nullopt);
  EXPECT_EQ(one.sum_gradients({x}), nullptr);
}

TEST(Processes, AddAndSendAndAgree) {
  EXPECT_EQ(kGood, together(2, [](Processes& p) {
              EXPECT_EQ(p.sum({1.0 + p.rank(), 0.5}), (std::vector<double>{3, 1}));
              EXPECT_TRUE(p.any(p.rank() == 1));
              EXPECT_FALSE(p.any(false));
              const auto x = torch::full({3}, p.rank() + 1, torch::kFloat);
              p.broadcast(x, 1);
              EXPECT_TRUE(x.equal(torch::full({3}, 2, torch::kFloat)));
              p.check_same("step", "7");
              if (p.first()) p.note("run", "here");
              p.barrier();
              EXPECT_EQ(p.noted("run"), "here");
            }));
}

TEST(Processes, ThatDisagreeAllSayWhoHasWhat) {
  for (const auto& error : together(2, [](Processes& p) { p.check_same("step", std::to_string(5 + p.rank())); })) {
    EXPECT_NE(error.find("do not have the same step: rank 0 has 5, rank 1 has 6"), std::string::npos) << error;
  }
}

TEST(Processes, ALostOneIsNamed) {
  const auto errors = together(2, [](Processes& p) {
    TORCH_CHECK(p.first(), "of its own");
    p.sum({1});
  });
  EXPECT_NE(errors[0].find("rank 0 of 2 lost rank 1 while"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("of its own"), std::string::npos) << errors[1];
}

// Over steps, since the first sum is another than those of the Reducer. In each, a is used by both processes, b by the
// second one only if it is used at all, and c never.
void check_gradients(bool all_are_used) {
  EXPECT_EQ(kGood, together(2, [&](Processes& p) {
              const auto weight = [] { return torch::ones({4}, torch::requires_grad()); };
              const auto a = weight(), b = weight(), c = weight();
              const auto sum = p.sum_gradients(all_are_used ? std::vector{a} : std::vector{a, b, c});
              for (int step = 1; step <= 3; ++step) {
                for (const auto& x : {a, b, c}) x.mutable_grad().reset();
                const double scale = step * (p.rank() + 1);
                (a.sum() * scale).backward();  // a micro-batch before, which is not sent
                auto loss = a.sum() * 10;
                if (!all_are_used && p.rank() == 1) loss = loss + (b * b).sum();
                sum->backward(loss);
                EXPECT_TRUE(a.grad().equal(torch::full({4}, 3.0 * step + 20))) << a.grad();
                if (all_are_used) continue;
                EXPECT_TRUE(b.grad().equal(torch::full({4}, 2.0))) << b.grad();
                EXPECT_FALSE(c.grad().defined());
              }
            }));
}

TEST(GradientSum, AddsWhatEveryProcessHas) { check_gradients(/*all_are_used=*/true); }
TEST(GradientSum, LeavesUnusedParametersWithoutGradients) { check_gradients(/*all_are_used=*/false); }

TEST(Launch, IsWhatTorchrunSays) {
  const auto set = [](const char* name, const char* value) { ::setenv(name, value, 1); };
  EXPECT_EQ(launch_from_environment(), std::nullopt);
  for (const auto* name : {"RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}) set(name, "3");
  set("RANK", "2");
  set("MASTER_ADDR", "there");
  set("TORCHELASTIC_USE_AGENT_STORE", "True");
  const auto launch = launch_from_environment();
  ASSERT_TRUE(launch);
  EXPECT_EQ(std::tuple(launch->rank, launch->size, launch->local_rank, launch->restarts), std::tuple(2, 3, 2, 3));
  EXPECT_EQ(std::tuple(launch->address, launch->port, launch->store_runs), std::tuple("there", 3, true));
  set("RANK", "two");
  EXPECT_THROW(launch_from_environment(), c10::ValueError);
  for (const auto* name : {"RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR"}) ::unsetenv(name);
}

TEST(Launch, GivesEachProcessItsDevice) {
  EXPECT_EQ(device_of({.rank = 1, .size = 2, .local_rank = 1}, "cpu"), "cpu");
  EXPECT_THROW(device_of({.rank = 1, .size = 2, .local_rank = 1}, "cuda:0"), c10::ValueError);
  EXPECT_THROW(device_of({.rank = 99, .size = 100, .local_rank = 99}, "cuda"), c10::ValueError);
}

}  // namespace
}  // namespace contextpool::runtime
