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

void unpack_f32(const void* from, float* to, int width) { std::memcpy(to, from, sizeof(float) * width); }

void unpack_f16(const void* from, float* to, int width) {
    const auto* values = static_cast<const uint16_t*>(from);
    for (int i = 0; i < width; i += LANES) simd::store(to + i, simd::load_f16(values + i));
}

void unpack_bf16(const void* from, float* to, int width) {
    const auto* values = static_cast<const uint16_t*>(from);
    for (int i = 0; i < width; i += LANES) simd::store(to + i, simd::load_bf16(values + i));
}

void unpack_q8_0(const void* from, float* to, int width) {
    const auto* blocks = static_cast<const BlockQ8_0*>(from);
    for (int i = 0; i < width; i += Q8_0_VALUES, ++blocks) {
        const float scale = simd::from_f16(blocks->scale);
        for (int j = 0; j < Q8_0_VALUES; j += LANES)
            simd::store(to + i + j, scale * simd::load_i8(blocks->values + j));
    }
}

}  // namespace

UnpackCell cell_unpacker(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32: return unpack_f32;
        case GGML_TYPE_F16: return unpack_f16;
        case GGML_TYPE_BF16: return unpack_bf16;
        case GGML_TYPE_Q8_0: return unpack_q8_0;
        default: return nullptr;
    }
}
