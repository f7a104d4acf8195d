// Products of weights with activations, as bytes or by tiles: each panel of weights is unpacked once for many rows.
#pragma once

#include "ggml_api.hpp"

namespace products {

// Called around the computation of a graph, in the thread that begins it.
void begin_graph();
void end_graph();

// Returns true if these kernels support the node, with activations as bytes or by tiles. All threads get the same answer.
bool can_do(const ggml_compute_params& params, const ggml_tensor& node);
bool can_use_tiles(const ggml_compute_params& params, const ggml_tensor& node);

// Computes this thread's part of a supported node.
void compute(const ggml_compute_params& params, ggml_tensor& node);
void compute_by_tiles(const ggml_compute_params& params, ggml_tensor& node);

}  // namespace products
