// rotary and rotary_qkv on CUDA tensors: strides go to the kernel as they are, so nothing is copied on the way.
#include "kernels/cuda/rotary/rotary.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>

#include "ops/rotary.h"
#include "ops/storage.h"

namespace contextpool {
namespace {

constexpr std::int64_t kMaxPairs = std::int64_t{1} << 31;  // pairs that the kernel counts

at::Tensor with_contiguous_features(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

// from and to [batch, tokens, heads, features]
cuda::RotaryPart part_of(const at::Tensor& from, const at::Tensor& to, bool turns) {
  return {.from = from.const_data_ptr(),
          .from_batch = from.stride(0),
          .from_token = from.stride(1),
          .from_head = from.stride(2),
          .to = to.mutable_data_ptr(),
          .to_batch = to.stride(0),
          .to_token = to.stride(1),
          .to_head = to.stride(2),
          .turns = turns};
}

// The problem but for its parts; keeps alive the copies that had to be made.
struct Turns {
  Turns(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back)
      : cos(cos.strides() == sin.strides() ? cos : cos.contiguous()),
        sin(cos.strides() == sin.strides() ? sin : sin.contiguous()) {
    TORCH_CHECK(x.numel() / 2 < kMaxPairs, "contextpool::rotary: up to 2^31 pairs on CUDA, but x has ",
                std::to_string(x.numel() / 2), "; turn parts of the batch");
    args.type = storage_type(x);
    args.batch = x.size(0);
    args.tokens = x.size(1);
    args.heads = x.size(2);
    args.features = x.size(3);
    args.cos = this->cos.const_data_ptr();
    args.sin = this->sin.const_data_ptr();
    args.turn_batch = cos.dim() == 3 ? this->cos.stride(0) : 0;
    args.turn_token = this->cos.stride(-2);
    args.turn_pair = this->cos.stride(-1);
    args.back = back;
  }
  void add(const at::Tensor& from, const at::Tensor& to, bool turns) {
    args.part[args.parts++] = part_of(from, to, turns);
  }
  void run() const { C10_CUDA_CHECK(cuda::rotary(args, c10::cuda::getCurrentCUDAStream())); }

  at::Tensor cos, sin;
  cuda::Rotary args;
};

at::Tensor rotary_cuda(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  check_rotary(x, cos, sin);
  const c10::cuda::CUDAGuard guard(x.device());
  auto y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;
  // The dimensions between tokens and features as one: a view where strides allow it.
  const auto in = with_contiguous_features(x.reshape({x.size(0), x.size(1), -1, x.size(-1)}));
  Turns turns(in, cos, sin, back);
  turns.add(in, y.view(in.sizes()), true);
  turns.run();
  return y;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> rotary_qkv_cuda(const at::Tensor& qkv, const at::Tensor& cos,
                                                               const at::Tensor& sin) {
  check_rotary_qkv(qkv, cos, sin);
  const c10::cuda::CUDAGuard guard(qkv.device());
  const auto in = with_contiguous_features(qkv);
  const auto part = [&] { return at::empty({qkv.size(0), qkv.size(1), qkv.size(3), qkv.size(4)}, qkv.options()); };
  auto q = part(), k = part(), v = part();
  if (qkv.numel() == 0) return {q, k, v};
  Turns turns(q, cos, sin, false);
  turns.add(in.select(2, 0), q, true);
  turns.add(in.select(2, 1), k, true);
  turns.add(in.select(2, 2), v, false);
  turns.run();
  return {q, k, v};
}

at::Tensor rotary_qkv_backward_cuda(const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv,
                                    const at::Tensor& cos, const at::Tensor& sin) {
  check_rotary_qkv_backward(dq, dk, dv, cos, sin);
  const c10::cuda::CUDAGuard guard(dq.device());
  auto dqkv = at::empty({dq.size(0), dq.size(1), 3, dq.size(2), dq.size(3)}, dq.options());
  if (dq.numel() == 0) return dqkv;
  const auto q = with_contiguous_features(dq), k = with_contiguous_features(dk), v = with_contiguous_features(dv);
  Turns turns(q, cos, sin, true);
  turns.add(q, dqkv.select(2, 0), true);
  turns.add(k, dqkv.select(2, 1), true);
  turns.add(v, dqkv.select(2, 2), false);
  turns.run();
  return dqkv;
}

}  // namespace

TORCH_LIBRARY_IMPL(contextpool, CUDA, m) {
  m.impl("rotary", rotary_cuda);
  m.impl("rotary_qkv", rotary_qkv_cuda);
  m.impl("_rotary_qkv_backward", rotary_qkv_backward_cuda);
}

}  // namespace contextpool
