// The inputs of the pooling operators in kernel layout, for the registrations of every device. They keep alive the
// copies that had to be made.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "kernels/pool1d.h"
#include "kernels/pool2d.h"
#include "ops/algorithm.h"
#include "ops/storage.h"

namespace contextpool {

struct Pool1dInputs {
  // rows: x as [batch, tokens, channels] or [rows, groups, tokens, channels], with contiguous channels.
  Pool1dInputs(const at::Tensor& rows, const at::Tensor& log_weight, const at::Tensor& sigma, bool causal,
               std::string_view algorithm)
      : x(rows), log_weight(log_weight.contiguous()), sigma(sigma.contiguous()) {
    args.tokens = x.size(-2);
    args.targets = sigma.size(-1);
    args.channels = x.size(-1);
    if (x.dim() == 4) {
      args.groups = x.size(1);
      args.x_group_stride = x.stride(1);
    }
    args.batch = x.size(0) * args.groups;
    args.causal = causal;
    args.algorithm = parse_sequence_algorithm("contextpool::pool1d", algorithm);
    args.type = storage_type(x);
    args.x = x.const_data_ptr();
    args.x_batch_stride = x.stride(0);
    args.x_token_stride = x.stride(-2);
    args.log_weight = this->log_weight.const_data_ptr();
    args.sigma = this->sigma.const_data_ptr();
  }

  at::Tensor x, log_weight, sigma;
  Pool1d args;
};

struct Pool2dInputs {
  Pool2dInputs(const at::Tensor& features, const at::Tensor& log_weight, const at::Tensor& sigma,
               at::IntArrayRef stride, std::string_view algorithm)
      : format(features.suggest_memory_format()),
        x(features.contiguous(format)),
        log_weight(log_weight.contiguous()),
        sigma(sigma.contiguous()) {
    args.batch = x.size(0);
    args.channels = x.size(1);
    args.height = x.size(2);
    args.width = x.size(3);
    args.out_height = sigma.size(1);
    args.out_width = sigma.size(2);
    args.stride_h = stride[0];
    args.stride_w = stride[1];
    args.channels_last = format == at::MemoryFormat::ChannelsLast;
    args.algorithm = parse_map_algorithm("contextpool::pool2d", algorithm);
    args.type = storage_type(x);
    args.x = x.const_data_ptr();
    args.log_weight = this->log_weight.const_data_ptr();
    args.sigma = this->sigma.const_data_ptr();
  }

  at::MemoryFormat format;
  at::Tensor x, log_weight, sigma;
  Pool2d args;
};

}  // namespace contextpool
