// Keys or values as they lie in the pool, unpacked to floats.
#pragma once

#include "ggml_api.hpp"

// The rows of one head: one for each cell of the pool.
struct CellRows {
    const char* first;
    size_t stride;
    int width;  // values of a row: a multiple of 16
};

// Unpacks the rows of some cells, one behind the other. `num_cells` counts those that will be wanted from
// `cells` on: more than `count` if another call comes for them.
using UnpackCells = void (*)(const CellRows& rows, const int* cells, int count, int num_cells, float* to);

// Null for a type that is not known.
UnpackCells cell_unpacker(ggml_type type);
