// One node of attention, read once from ggml's tensors.
#pragma once

#include "cells.hpp"
#include "ggml_api.hpp"

namespace attention {

struct Node {
    const ggml_tensor &q, &k, &v;
    const ggml_tensor* mask;  // (row, cell), f16; null: every row sees every cell
    const float* sinks;       // a score for each head that belongs to no cell; null: none
    ggml_tensor& result;
    int rows, cells, heads;
    int key_width, value_width;  // width of values, rounded up to whole vectors
    bool fills_vectors;          // true if both widths fill whole vectors
    int heads_of_kv;  // that share keys and values
    bool by_tiles;    // of AMX, where there are many lanes
    int lanes_max;    // rows times heads that are computed together
    int group;        // heads of a row that are computed together: those that share keys and values, or a part of them
    bool values_in_keys;  // the values are the first numbers of the keys (latent attention)
    float scale, max_bias, soft_cap;
    UnpackCells unpack_k, unpack_v;

    Node(const ggml_tensor& node, bool by_tiles);

    int num_groups() const { return heads / group; }
    // Head of keys and values of a group.
    int kv_head(int group_number) const { return group_number * group / heads_of_kv; }
    const float* query(int row, int head) const {
        return reinterpret_cast<const float*>(at(q, row * q.nb[1] + head * q.nb[2]));
    }
    const uint16_t* mask_of(int row) const {
        return reinterpret_cast<const uint16_t*>(at(*mask, row * mask->nb[1]));
    }
    float* result_of(int row, int head) const {
        const size_t offset = row * result.nb[2] + head * result.nb[1];
        return reinterpret_cast<float*>(static_cast<char*>(result.data) + offset);
    }
    // ALiBi's factor of the mask.
    float slope(int head) const;

private:
    static const char* at(const ggml_tensor& tensor, size_t offset) {
        return static_cast<const char*>(tensor.data) + offset;
    }
};

// Returns true if this kernel computes nodes of this kind.
bool is_known(const ggml_tensor& node, bool by_tiles);

}  // namespace attention
