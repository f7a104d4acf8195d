// Source of the numbers of a tile's cells.
#pragma once

#include "cells.hpp"
#include "simd.hpp"

namespace attention {

// The rows of a tile's cells, unpacked.
struct UnpackedRows {
    const float* first;
    int stride;  // floats from a row to the next

    simd::floats load(int cell, int d) const { return simd::load(first + cell * stride + d); }
    void step(int) const {}
};

// The rows of a tile's cells in the pool, as f16.
struct HalfRows {
    const char* first;
    const size_t* offsets;  // of each cell's row
    CellsAhead& ahead;

    simd::floats load(int cell, int d) const {
        return simd::load_f16(reinterpret_cast<const uint16_t*>(first + offsets[cell]) + d);
    }
    // Reports that this many vectors have been read.
    void step(int vectors) const { ahead.step(vectors * simd::LANES * sizeof(uint16_t)); }
};

}  // namespace attention
