// Keys and values as they lie in the pool, unpacked to floats.
#pragma once

#include "ggml_api.hpp"

// Unpacks the row of one cell, whose width is a multiple of 16.
using UnpackCell = void (*)(const void* from, float* to, int width);

// Null for a type that is not known.
UnpackCell cell_unpacker(ggml_type type);
