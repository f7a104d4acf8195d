// Products by tiles of bf16 or of bytes: weights of one expert, unpacked panel by panel, times packed activations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml_api.hpp"

namespace tiles {

constexpr int OUTS = 32, BLOCK_ROWS = 16;  // rows of a panel of weights; of a block of activations

// Activations by panels, then by blocks of 16 rows, and (of bf16) the factor of each row's results. An expert has whole pairs of
// blocks, the last of them filled with zeros.
struct Packed {
    uint8_t* blocks;
    float* factors;
    int64_t num_blocks, block_bytes;

    uint8_t* at(int64_t panel, int64_t block) const { return blocks + (panel * num_blocks + block) * block_bytes; }
};
inline int64_t blocks_of(int64_t rows) { return (rows + 2 * BLOCK_ROWS - 1) / (2 * BLOCK_ROWS) * 2; }
inline int64_t panels_of(int64_t depth) { return (depth + 255) / 256; }

// Panels of up to 16 rows of activations, for one block.
struct Packing {
    const float* rows[BLOCK_ROWS];
    int count;
    int64_t depth;
    int64_t first_panel, end_panel;
    Packed to;
    int64_t block;
};

struct Multiplying {
    const uint8_t* weights;  // the expert's first row
    size_t weight_stride;
    int64_t num_outs, depth;
    int64_t begin, end;  // outs; `begin` is a multiple of OUTS
    Packed activations;
    int64_t first_block, num_rows;
    float* const* results;  // of each row
};

struct Heads;

// A group of panels of 32 rows of weights that is unpacked row by row, each to a row of two rows of tiles.
struct Unpacking {
    const Multiplying* job;
    int64_t out, panel;            // the first
    int64_t next_out, next_panel;  // of the group behind it
    int num_panels;
    uint8_t* to;
    float* scales;  // of bytes: of each row, panel by panel
    Heads* heads;   // of bytes: of each panel
    int done = 0;   // rows of single panels

    int size() const { return OUTS * num_panels; }
};

// Functions for a type. Types with the same `pack` share packed activations.
struct Kernel {
    int64_t block_bytes;
    void (*pack)(const Packing&);
    void (*unpack)(Unpacking&, int end);
    void (*multiply)(const Kernel&, const Multiplying&);  // by a thread that has configured its tiles
};

// Null: no tiles for this type.
const Kernel* kernel_of(ggml_type type);

constexpr int MOST_OUTS = 256;  // of one job

}  // namespace tiles
