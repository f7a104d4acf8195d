#include "cells.hpp"

#include "simd.hpp"

namespace {

using simd::LANES;

constexpr int Q8_0_VALUES = 32;

struct BlockQ8_0 {
    uint16_t scale;  // f16
    int8_t values[Q8_0_VALUES];
};
static_assert(sizeof(BlockQ8_0) == 34);

struct F32 {
    static size_t bytes(int width) { return sizeof(float) * width; }
    static void unpack(const char* from, float* to, int width) { std::memcpy(to, from, bytes(width)); }
};

// f16 or bf16.
template <simd::floats (*LOAD)(const uint16_t*)>
struct Half {
    static size_t bytes(int width) { return sizeof(uint16_t) * width; }
    static void unpack(const char* from, float* to, int width) {
        const auto* values = reinterpret_cast<const uint16_t*>(from);
        int i = 0;
        for (; i + LANES <= width; i += LANES) simd::store(to + i, LOAD(values + i));
        if (i == width) return;
        uint16_t last[LANES]{};
        std::memcpy(last, values + i, bytes(width - i));
        simd::store(to + i, LOAD(last));
    }
};

struct Q8_0 {
    static size_t bytes(int width) { return sizeof(BlockQ8_0) * (width / Q8_0_VALUES); }
    static void unpack(const char* from, float* to, int width) {
        const auto* blocks = reinterpret_cast<const BlockQ8_0*>(from);
        for (int i = 0; i < width; i += Q8_0_VALUES, ++blocks) {
            const float scale = simd::from_f16(blocks->scale);
            for (int j = 0; j < Q8_0_VALUES; j += LANES)
                simd::store(to + i + j, scale * simd::load_i8(blocks->values + j));
        }
    }
};

template <class Row>
void unpack(const CellRows& rows, const int* cells, int count, CellsAhead& ahead, float* to, int to_stride) {
    for (int i = 0; i < count; ++i, to += to_stride) {
        ahead.step(Row::bytes(rows.width));
        Row::unpack(rows.first + cells[i] * rows.stride, to, rows.width);
    }
}

}  // namespace

UnpackCells cell_unpacker(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32: return unpack<F32>;
        case GGML_TYPE_F16: return unpack<Half<simd::load_f16>>;
        case GGML_TYPE_BF16: return unpack<Half<simd::load_bf16>>;
        case GGML_TYPE_Q8_0: return unpack<Q8_0>;
        default: return nullptr;
    }
}
