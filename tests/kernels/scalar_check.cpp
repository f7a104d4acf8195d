// Compares the kernels with plain loops over doubles, without ggml: so they can be run for a CPU that is not this
// machine's, under an emulator. Prints a line for each case that differs; returns how many do.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "cpu.hpp"
#include "products.hpp"
#include "recurrent.hpp"
#include "simd.hpp"

namespace {

int next_chunk;
std::mt19937 generator{7};

void no_barrier(ggml_threadpool*) {}
void set_chunk(ggml_threadpool*, int value) { next_chunk = value; }
int add_chunk(ggml_threadpool*, int value) { return (next_chunk += value) - value; }

float normal() { return std::normal_distribution<float>{}(generator); }
uint8_t byte() { return static_cast<uint8_t>(generator()); }

// Half-precision numbers between 0.01 and 0.02 in steps that are exact.
uint16_t small_half() { return static_cast<uint16_t>(0x2120 + generator() % 512); }
double half(const uint8_t* at) {
    uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
    return bits & 0x8000 ? -size : size;
}

using Unpack = void (*)(const uint8_t* block, double* weights);
struct Format {
    const char* name;
    ggml_type type;
    int weights, bytes, unit;
    std::vector<int> halves;  // where a block has half-precision numbers
    Unpack unpack;
};

template <int START, int BITS_START, int CENTRE, bool HAS_OFFSET>
void unpack_32(const uint8_t* block, double* weights) {
    for (int i = 0; i < 32; i++) {
        int value = i < 16 ? block[START + i] & 15 : block[START + i - 16] >> 4;
        if (BITS_START) value |= (block[BITS_START + i / 8] >> i % 8 & 1) << 4;
        weights[i] = half(block) * (value - CENTRE) + (HAS_OFFSET ? half(block + 2) : 0);
    }
}

void unpack_q8_0(const uint8_t* block, double* weights) {
    for (int i = 0; i < 32; i++) weights[i] = half(block) * static_cast<int8_t>(block[2 + i]);
}

const int IQ4_VALUES[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int FP4_VALUES[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void unpack_iq4_nl(const uint8_t* block, double* weights) {
    for (int i = 0; i < 32; i++)
        weights[i] = half(block) * IQ4_VALUES[i < 16 ? block[2 + i] & 15 : block[2 + i - 16] >> 4];
}

void unpack_mxfp4(const uint8_t* block, double* weights) {
    for (int i = 0; i < 32; i++)
        weights[i] = std::ldexp(FP4_VALUES[i < 16 ? block[1 + i] & 15 : block[1 + i - 16] >> 4], block[0] - 128);
}

void unpack_iq4_xs(const uint8_t* block, double* weights) {
    for (int i = 0; i < 256; i++) {
        const int j = i / 32, high = (block[2] | block[3] << 8) >> 2 * j & 3;
        const int scale = (block[4 + j / 2] >> 4 * (j % 2) & 15) | high << 4;
        const uint8_t both = block[8 + 16 * j + i % 16];
        weights[i] = half(block) * (scale - 32) * IQ4_VALUES[i % 32 < 16 ? both & 15 : both >> 4];
    }
}

void unpack_q2_k(const uint8_t* block, double* weights) {
    for (int i = 0; i < 256; i++) {
        const int value = block[16 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3, both = block[i / 16];
        weights[i] = half(block + 80) * (both & 15) * value - half(block + 82) * (both >> 4);
    }
}

void unpack_q3_k(const uint8_t* block, double* weights) {
    for (int i = 0; i < 256; i++) {
        const int pair = block[32 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3, third = block[i % 32] >> i / 32 & 1;
        const int j = i / 16, low = block[96 + j % 8] >> (j < 8 ? 0 : 4) & 15;
        const int scale = low | (block[104 + j % 4] >> j / 4 * 2 & 3) << 4;
        weights[i] = half(block + 108) * (scale - 32) * (pair + 4 * third - 4);
    }
}

// A grid like those of ggml, with other numbers: the index into `values` at a place.
template <int COUNT>
int on_grid(const int (&values)[COUNT], int place, int i) {
    return values[(uint32_t(place * 8 + i) * 2654435761U >> 16) % COUNT];
}
const int TWO_BIT_VALUES[] = {8, 25, 43}, IQ3_XXS_VALUES[] = {4, 12, 20, 28, 36, 44, 52, 62};
const int IQ3_S_VALUES[] = {1, 3, 5, 7, 9, 11, 13, 15};

int sign(int bits, int i) { return bits >> i & 1 ? -1 : 1; }
int with_parity(int seven) { return seven | __builtin_parity(seven) << 7; }
uint32_t word(const uint8_t* at) { return at[0] | at[1] << 8 | at[2] << 16 | uint32_t(at[3]) << 24; }

void unpack_iq2_xxs(const uint8_t* block, double* weights) {
    for (int i = 0; i < 256; i++) {
        const uint8_t* part = block + 2 + i / 32 * 8;
        const uint32_t last = word(part + 4);
        const int eight = i % 32 / 8, signs = with_parity(last >> 7 * eight & 127);
        const double scale = half(block) * (0.5 + (last >> 28)) / 4;
        weights[i] = scale * on_grid(TWO_BIT_VALUES, part[eight], i % 8) * sign(signs, i % 8);
    }
}

void unpack_iq2_xs(const uint8_t* block, double* weights) {
    for (int i = 0; i < 256; i++) {
        const int both = word(block + 2 + i / 8 * 2) & 0xffff;
        const double scale = half(block) * (0.5 + (block[66 + i / 32] >> i % 32 / 16 * 4 & 15)) / 4;
        weights[i] = scale * on_grid(TWO_BIT_VALUES, both & 511, i % 8) * sign(with_parity(both >> 9), i % 8);
    }
}

void unpack_iq2_s(const uint8_t* block, double* weights) {
    for (int i = 0; i < 256; i++) {
        const int place = block[2 + i / 8] | (block[66 + i / 32] >> i % 32 / 8 * 2 & 3) << 8;
        const double scale = half(block) * (0.5 + (block[74 + i / 32] >> i % 32 / 16 * 4 & 15)) / 4;
        weights[i] = scale * on_grid(TWO_BIT_VALUES, place, i % 8) * sign(block[34 + i / 8], i % 8);
    }
}

void unpack_iq3_xxs(const uint8_t* block, double* weights) {
    for (int i = 0; i < 256; i++) {
        const uint32_t last = word(block + 66 + i / 32 * 4);
        const int signs = with_parity(last >> 7 * (i % 32 / 8) & 127);
        const double scale = half(block) * (0.5 + (last >> 28)) / 2;
        weights[i] = scale * on_grid(IQ3_XXS_VALUES, block[2 + i / 4], i % 4) * sign(signs, i % 8);
    }
}

void unpack_iq3_s(const uint8_t* block, double* weights) {
    for (int i = 0; i < 256; i++) {
        const int place = block[2 + i / 4] | (block[66 + i / 32] >> i % 32 / 4 & 1) << 8;
        const double scale = half(block) * (1 + 2 * (block[106 + i / 64] >> i % 64 / 32 * 4 & 15));
        weights[i] = scale * on_grid(IQ3_S_VALUES, place, i % 4) * sign(block[74 + i / 8], i % 8);
    }
}

// Q4_K and Q5_K: eight blocks of 32 with a scale and a minimum of six bits each.
template <bool HAS_FIFTH_BIT>
void unpack_k(const uint8_t* block, double* weights) {
    const uint8_t *packed = block + 4, *bits = block + 16, *nibbles = block + (HAS_FIFTH_BIT ? 48 : 16);
    for (int i = 0; i < 256; i++) {
        const int j = i / 32;
        const int scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        const int minimum = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
        const uint8_t both = nibbles[i / 64 * 32 + i % 32];
        int value = j % 2 ? both >> 4 : both & 15;
        if (HAS_FIFTH_BIT) value |= (bits[i % 32] >> j & 1) << 4;
        weights[i] = half(block) * scale * value - half(block + 2) * minimum;
    }
}

void unpack_q6_k(const uint8_t* block, double* weights) {
    for (int i = 0; i < 256; i++) {
        const int part = i / 128, quarter = i % 128 / 32, at = i % 32;
        const uint8_t both = block[part * 64 + quarter % 2 * 32 + at];
        const int low = quarter < 2 ? both & 15 : both >> 4;
        const int high = block[128 + part * 32 + at] >> 2 * quarter & 3;
        weights[i] = half(block + 208) * static_cast<int8_t>(block[192 + i / 16]) * ((low | high << 4) - 32);
    }
}

const Format FORMATS[] = {
    {"Q4_0", GGML_TYPE_Q4_0, 32, 18, 32, {0}, unpack_32<2, 0, 8, false>},
    {"Q4_1", GGML_TYPE_Q4_1, 32, 20, 32, {0, 2}, unpack_32<4, 0, 0, true>},
    {"Q5_0", GGML_TYPE_Q5_0, 32, 22, 32, {0}, unpack_32<6, 2, 16, false>},
    {"Q5_1", GGML_TYPE_Q5_1, 32, 24, 32, {0, 2}, unpack_32<8, 4, 0, true>},
    {"Q8_0", GGML_TYPE_Q8_0, 32, 34, 32, {0}, unpack_q8_0},
    {"Q4_K", GGML_TYPE_Q4_K, 256, 144, 256, {0, 2}, unpack_k<false>},
    {"Q5_K", GGML_TYPE_Q5_K, 256, 176, 256, {0, 2}, unpack_k<true>},
    {"Q6_K", GGML_TYPE_Q6_K, 256, 210, 256, {208}, unpack_q6_k},
    {"IQ4_NL", GGML_TYPE_IQ4_NL, 32, 18, 32, {0}, unpack_iq4_nl},
    {"MXFP4", GGML_TYPE_MXFP4, 32, 17, 32, {}, unpack_mxfp4},
    {"IQ4_XS", GGML_TYPE_IQ4_XS, 256, 136, 256, {0}, unpack_iq4_xs},
    {"Q2_K", GGML_TYPE_Q2_K, 256, 84, 256, {80, 82}, unpack_q2_k},
    {"Q3_K", GGML_TYPE_Q3_K, 256, 110, 256, {108}, unpack_q3_k},
    {"IQ2_XXS", GGML_TYPE_IQ2_XXS, 256, 66, 256, {0}, unpack_iq2_xxs},
    {"IQ2_XS", GGML_TYPE_IQ2_XS, 256, 74, 256, {0}, unpack_iq2_xs},
    {"IQ2_S", GGML_TYPE_IQ2_S, 256, 82, 256, {0}, unpack_iq2_s},
    {"IQ3_XXS", GGML_TYPE_IQ3_XXS, 256, 98, 256, {0}, unpack_iq3_xxs},
    {"IQ3_S", GGML_TYPE_IQ3_S, 256, 110, 256, {0}, unpack_iq3_s},
};

// Stands in for ggml's table of types, from which the kernel reads its grids.
template <int NUMBER>
void to_float(const void* block, float* numbers, int64_t) {
    double weights[256];
    FORMATS[NUMBER].unpack(static_cast<const uint8_t*>(block), weights);
    std::copy_n(weights, FORMATS[NUMBER].weights, numbers);
}

template <size_t... NUMBERS>
const ggml_type_traits* traits_of(ggml_type type, std::index_sequence<NUMBERS...>) {
    static const ggml_type_traits traits[] = {{FORMATS[NUMBERS].name, 0, 0, 0, true, to_float<NUMBERS>}...};
    for (size_t i = 0; i < std::size(FORMATS); i++)
        if (FORMATS[i].type == type) return &traits[i];
    return nullptr;
}

const ggml_type_traits* type_traits(ggml_type type) {
    return traits_of(type, std::make_index_sequence<std::size(FORMATS)>());
}

ggml_tensor tensor(ggml_type type, void* data, std::vector<int64_t> ne, std::vector<size_t> nb) {
    ggml_tensor made{};
    made.type = type;
    made.data = data;
    for (int i = 0; i < 4; i++) {
        made.ne[i] = i < int(ne.size()) ? ne[i] : 1;
        made.nb[i] = i < int(nb.size()) ? nb[i] : nb.back() * 1;
    }
    return made;
}

struct Room {
    std::vector<uint64_t> memory = std::vector<uint64_t>(1 << 20);
    ggml_compute_params params{0, 1, memory.size() * 8, memory.data(), nullptr, false};
};

// One expert: a plain product, whose tokens have one slot.
bool product_agrees(const Format& format, int tokens, int outputs, int depth, int experts, int slots, Room& room) {
    const int blocks = depth / format.weights, stride = blocks * format.bytes;
    std::vector<uint8_t> packed(size_t(experts) * outputs * stride + 64);
    for (auto& one : packed) one = byte();
    std::vector<double> weights(size_t(experts) * outputs * depth);
    for (int block = 0; block < experts * outputs * blocks; block++) {
        uint8_t* at = packed.data() + size_t(block) * format.bytes;
        for (int place : format.halves) {
            const uint16_t number = small_half();
            std::memcpy(at + place, &number, sizeof number);
        }
        if (format.type == GGML_TYPE_MXFP4) at[0] = 120 + byte() % 4;
        format.unpack(at, weights.data() + size_t(block) * format.weights);
    }
    std::vector<float> activations(size_t(tokens) * depth), found(size_t(tokens) * slots * outputs);
    for (auto& one : activations) one = std::pow(normal(), 3.0F);
    std::vector<int32_t> chosen(size_t(tokens) * slots);
    for (auto& one : chosen) one = int32_t(generator() % experts);
    const size_t row = size_t(depth) * 4, result = size_t(outputs) * 4, matrix = size_t(stride) * outputs;
    ggml_tensor a =
        tensor(format.type, packed.data(), {depth, outputs, experts}, {size_t(format.bytes), size_t(stride), matrix});
    ggml_tensor b = tensor(GGML_TYPE_F32, activations.data(), {depth, tokens}, {4, row});
    ggml_tensor node = tensor(GGML_TYPE_F32, found.data(), {outputs, tokens}, {4, result});
    ggml_tensor ids = tensor(GGML_TYPE_I32, chosen.data(), {slots, tokens}, {4, size_t(slots) * 4});
    if (experts > 1) {
        b = tensor(GGML_TYPE_F32, activations.data(), {depth, 1, tokens}, {4, row, row});
        node = tensor(GGML_TYPE_F32, found.data(), {outputs, slots, tokens}, {4, result, slots * result});
        node.src[2] = &ids;
    }
    node.op = experts > 1 ? GGML_OP_MUL_MAT_ID : GGML_OP_MUL_MAT;
    node.src[0] = &a, node.src[1] = &b;
    if (!products::can_do(room.params, node)) return false;
    products::compute(room.params, node);
    for (int i = 0; i < tokens * slots; i++)
        for (int output = 0; output < outputs; output++) {
            const double* weight = weights.data() + (size_t(chosen[i]) * outputs + output) * depth;
            const float* activation = activations.data() + size_t(i / slots) * depth;
            double exact = 0, allowed = 0, size = 0;
            for (int start = 0; start < depth; start += format.unit) {
                double largest = 0, total = 0;
                for (int j = start; j < start + format.unit; j++) {
                    const double x = activation[j], w = weight[j];
                    exact += x * w, size += std::abs(x * w), total += std::abs(w);
                    largest = std::max(largest, std::abs(x));
                }
                allowed += largest / 254 * total;
            }
            const double error = std::abs(found[size_t(i) * outputs + output] - exact);
            if (!(error <= allowed + 1e-5 * size)) return false;
        }
    return true;
}

struct Cells {
    ggml_type type;
    const char* name;
    size_t bytes;  // of 32 values
};
const Cells CELLS[] = {{GGML_TYPE_F32, "f32", 128}, {GGML_TYPE_F16, "f16", 64}, {GGML_TYPE_BF16, "bf16", 64},
                       {GGML_TYPE_Q8_0, "q8_0", 34}};

double cell_value(const Cells& cells, const uint8_t* row, int i) {
    float wide = 0;
    if (cells.type == GGML_TYPE_F32) std::memcpy(&wide, row + 4 * i, 4);
    else if (cells.type == GGML_TYPE_F16) return half(row + 2 * i);
    else if (cells.type == GGML_TYPE_BF16) std::memcpy(reinterpret_cast<uint8_t*>(&wide) + 2, row + 2 * i, 2);
    else return half(row + i / 32 * 34) * static_cast<int8_t>(row[i / 32 * 34 + 2 + i % 32]);
    return wide;
}

void fill_cells(const Cells& cells, std::vector<uint8_t>& data) {
    for (size_t at = 0; at < data.size(); at += cells.bytes)
        for (int i = 0; i < 32; i++) {
            const float x = normal();
            const uint16_t number = small_half() | (generator() % 2 ? 0x8000 : 0);
            uint8_t* block = data.data() + at;
            if (cells.type == GGML_TYPE_F32) std::memcpy(block + 4 * i, &x, 4);
            else if (cells.type == GGML_TYPE_F16) std::memcpy(block + 2 * i, &number, 2);
            else if (cells.type == GGML_TYPE_BF16)
                std::memcpy(block + 2 * i, reinterpret_cast<const uint8_t*>(&x) + 2, 2);
            else block[2 + i] = byte(), i == 0 ? (void)std::memcpy(block, &number, 2) : (void)0;
        }
}

// Values that are less wide than keys are a view of the first numbers of these.
bool attention_agrees(const Cells& type, int rows, int cells, int width, int value_width, int heads, int kv_heads,
                      float soft_cap, Room& room) {
    const size_t row_bytes = type.bytes * width / 32;
    std::vector<float> q(size_t(rows) * heads * width), found(size_t(rows) * heads * value_width);
    std::vector<uint8_t> k(row_bytes * cells * kv_heads), own_values(k.size());
    std::vector<uint8_t>& v = value_width < width ? k : own_values;
    std::vector<uint16_t> mask(size_t(rows) * cells);
    for (auto& one : q) one = normal();
    fill_cells(type, k), fill_cells(type, own_values);
    for (int row = 0; row < rows; row++)
        for (int cell = 0; cell < cells; cell++)
            mask[size_t(row) * cells + cell] = cell && generator() % 3 ? 0xfc00 : 0;
    const size_t w = width, vw = value_width, n = rows, h = kv_heads;
    ggml_tensor tq = tensor(GGML_TYPE_F32, q.data(), {width, rows, heads}, {4, w * 4, w * n * 4, q.size() * 4});
    ggml_tensor tk = tensor(type.type, k.data(), {width, cells, kv_heads}, {1, row_bytes * h, row_bytes, k.size()});
    ggml_tensor tv = tk;
    tv.data = v.data(), tv.ne[0] = value_width;
    ggml_tensor tm = tensor(GGML_TYPE_F16, mask.data(), {cells, rows}, {2, size_t(cells) * 2, mask.size() * 2});
    ggml_tensor node =
        tensor(GGML_TYPE_F32, found.data(), {value_width, heads, rows}, {4, vw * 4, vw * heads * 4, found.size() * 4});
    const float scale = 1 / std::sqrt(float(width));
    std::memcpy(node.op_params, &scale, 4), std::memcpy(node.op_params + 2, &soft_cap, 4);
    node.src[0] = &tq, node.src[1] = &tk, node.src[2] = &tv, node.src[3] = &tm;
    if (!attention::can_do(room.params, node)) return false;
    attention::compute(room.params, node);
    for (int row = 0; row < rows; row++)
        for (int head = 0; head < heads; head++) {
            std::vector<double> sum(value_width);
            double weights = 0;
            for (int cell = 0; cell < cells; cell++) {
                if (mask[size_t(row) * cells + cell]) continue;
                const size_t at = row_bytes * (size_t(cell) * kv_heads + head / (heads / kv_heads));
                double score = 0;
                for (int i = 0; i < width; i++)
                    score += q[(size_t(head) * rows + row) * width + i] * cell_value(type, k.data() + at, i);
                score *= scale;
                if (soft_cap != 0) score = soft_cap * std::tanh(score / soft_cap);
                weights += std::exp(score);
                for (int i = 0; i < value_width; i++) sum[i] += std::exp(score) * cell_value(type, v.data() + at, i);
            }
            for (int i = 0; i < value_width; i++) {
                const double error = std::abs(found[(size_t(row) * heads + head) * vw + i] - sum[i] / weights);
                if (!(error < 2e-4)) return false;
            }
        }
    return true;
}

std::vector<float> normals(int64_t count, float size = 1) {
    std::vector<float> found(count);
    for (auto& one : found) one = size * normal();
    return found;
}

bool all_near(const std::vector<float>& found, const std::vector<double>& exact) {
    for (size_t i = 0; i < exact.size(); i++)
        if (!(std::abs(found[i] - exact[i]) < 1e-4)) return false;
    return true;
}

// The tensor of values in a row.
ggml_tensor dense(std::vector<float>& values, const std::vector<int64_t>& sizes) {
    std::vector<size_t> steps{4};
    for (int64_t size : sizes) steps.push_back(steps.back() * size);
    while (steps.size() < 4) steps.push_back(steps.back());
    ggml_tensor result = tensor(GGML_TYPE_F32, values.data(), {sizes[0]}, {4});
    for (size_t i = 0; i < 4; i++) result.ne[i] = i < sizes.size() ? sizes[i] : 1, result.nb[i] = steps[i];
    return result;
}

bool delta_net_agrees(int64_t tokens, int64_t gates, Room& room) {
    constexpr int64_t WIDTH = 64, HEADS = 2;
    auto q = normals(WIDTH * HEADS * tokens), k = normals(q.size(), 0.1F), v = normals(q.size());
    auto g = normals(gates * HEADS * tokens), beta = normals(HEADS * tokens, 0.3F), state = normals(WIDTH * WIDTH * HEADS);
    for (auto& one : g) one = -std::abs(one);
    std::vector<float> found(q.size() + state.size());
    ggml_tensor sources[] = {dense(q, {WIDTH, HEADS, tokens}),     dense(k, {WIDTH, HEADS, tokens}),
                             dense(v, {WIDTH, HEADS, tokens}),     dense(g, {gates, HEADS, tokens}),
                             dense(beta, {1, HEADS, tokens}), dense(state, {WIDTH, WIDTH, HEADS})};
    ggml_tensor node = dense(found, {static_cast<int64_t>(found.size())});
    for (int i = 0; i < 6; i++) node.src[i] = &sources[i];
    node.op_params[0] = 1;
    if (!recurrent::is_known_delta_net(node)) return false;
    recurrent::delta_net(node, recurrent::states_of_delta_net(node), false)->compute(room.params);
    std::vector<double> exact(found.size());
    std::copy(state.begin(), state.end(), exact.begin() + q.size());
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t head = 0; head < HEADS; head++)
            for (int64_t row = 0; row < WIDTH; row++) {
                const int64_t at = token * HEADS + head;
                double* s = &exact[q.size() + (head * WIDTH + row) * WIDTH];
                double by_key = 0, by_query = 0;
                for (int64_t i = 0; i < WIDTH; i++) s[i] *= std::exp(double{g[at * gates + i % gates]});
                for (int64_t i = 0; i < WIDTH; i++) by_key += s[i] * k[at * WIDTH + i];
                const double difference = beta[at] * (v[at * WIDTH + row] - by_key);
                for (int64_t i = 0; i < WIDTH; i++) s[i] += difference * k[at * WIDTH + i];
                for (int64_t i = 0; i < WIDTH; i++) by_query += s[i] * q[at * WIDTH + i];
                exact[at * WIDTH + row] = by_query / std::sqrt(double{WIDTH});
            }
    return all_near(found, exact);
}

// Mamba 2 with `rows` of a head; Mamba 1 with one, whose values decay differently.
bool scan_agrees(int64_t tokens, int64_t rows, Room& room) {
    const int64_t heads = 6, width = 16, decays = rows == 1 ? width : 1;
    auto x = normals(rows * heads * tokens), dt = normals(heads * tokens), a = normals(decays * heads);
    auto b = normals(width * tokens), c = normals(width * tokens), state = normals(width * rows * heads);
    for (auto& one : a) one = -std::abs(one);
    std::vector<float> found(x.size() + state.size());
    std::vector<int32_t> ids{0};
    ggml_tensor sources[] = {dense(state, {width, rows, heads}), dense(x, {rows, heads, tokens}), dense(dt, {heads, tokens}),
                             dense(a, {decays, heads}),          dense(b, {width, 1, tokens}),    dense(c, {width, 1, tokens}),
                             tensor(GGML_TYPE_I32, ids.data(), {1}, {4})};
    ggml_tensor node = dense(found, {static_cast<int64_t>(found.size())});
    for (int i = 0; i < 7; i++) node.src[i] = &sources[i];
    node.op_params[0] = 1;
    if (!recurrent::is_known_scan(node)) return false;
    recurrent::scan(node, recurrent::states_of_scan(node))->compute(room.params);
    std::vector<double> exact(found.size());
    std::copy(state.begin(), state.end(), exact.begin() + x.size());
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t row = 0; row < heads * rows; row++) {
            const double step = std::log1p(std::exp(double{dt[token * heads + row / rows]}));
            double* s = &exact[x.size() + row * width];
            double sum = 0;
            for (int64_t i = 0; i < width; i++) {
                s[i] = s[i] * std::exp(step * a[row / rows * decays + i % decays]) +
                       step * x[token * heads * rows + row] * b[token * width + i];
                sum += s[i] * c[token * width + i];
            }
            exact[token * heads * rows + row] = sum;
        }
    return all_near(found, exact);
}

bool convolution_agrees(int64_t tokens, int64_t taps, Room& room) {
    const int64_t channels = 144;
    auto inputs = normals(channels * tokens), weights = normals(channels * taps), state = normals(channels * (taps - 1));
    std::vector<float> found(inputs.size() + state.size());
    recurrent::Convolution layer{};
    layer.taps = taps, layer.channels = channels, layer.tokens = tokens, layer.sequences = 1;
    layer.weights = weights.data(), layer.has_silu = true;
    layer.inputs = reinterpret_cast<const char*>(inputs.data()), layer.token_stride = 4 * channels;
    layer.states = {state.data()}, layer.result = found.data();
    layer.kept = {{tokens, {reinterpret_cast<char*>(&found[inputs.size()]), 4 * state.size()}}};
    recurrent::convolution(layer)->compute(room.params);
    std::vector<double> exact(found.size());
    for (int64_t channel = 0; channel < channels; channel++) {
        const auto at = [&](int64_t column) {
            return double{column < taps - 1 ? state[channel * (taps - 1) + column]
                                            : inputs[(column - taps + 1) * channels + channel]};
        };
        for (int64_t token = 0; token < tokens; token++) {
            double sum = 0;
            for (int64_t tap = 0; tap < taps; tap++) sum += weights[channel * taps + tap] * at(token + tap);
            exact[token * channels + channel] = sum / (1 + std::exp(-sum));
        }
        for (int64_t i = 0; i < taps - 1; i++)
            exact[inputs.size() + channel * (taps - 1) + i] = at(tokens + i);
    }
    return all_near(found, exact);
}

}  // namespace

const Ggml& ggml() {
    static const Ggml ours = [] {
        Ggml found{};
        found.barrier = no_barrier, found.chunk_set = set_chunk, found.chunk_add = add_chunk;
        found.type_traits = type_traits;
        return found;
    }();
    return ours;
}

int main() {
    Room room;
    int differing = 0;
    const auto check = [&](bool agrees, const std::string& name) {
        if (!agrees) std::printf("differs: %s\n", name.c_str()), differing++;
    };
    for (const Format& format : FORMATS)
        for (int rows : {1, 2, 3, 5, 7, 17, 130})
            for (int outputs : {64, 77})
                for (int experts : {1, 4})
                    check(product_agrees(format, rows, outputs, 512, experts, experts > 1 ? 3 : 1, room),
                          std::string(format.name) + " rows " + std::to_string(rows) + " experts " +
                              std::to_string(experts));
    const auto check_attention = [&](const Cells& cells, int rows, int width, int value_width, float soft_cap) {
        check(attention_agrees(cells, rows, 150, width, value_width, 6, 2, soft_cap, room),
              std::string("attention ") + cells.name + " rows " + std::to_string(rows) + " width " +
                  std::to_string(width));
    };
    for (const Cells& cells : CELLS) {
        for (int rows : {1, 5, 40})
            for (int width : {64, 128})
                for (float soft_cap : {0.0F, 5.0F}) check_attention(cells, rows, width, width, soft_cap);
        check_attention(cells, 1, 512, 512, 0);
        check_attention(cells, 4, 576, 512, 0);
    }
    for (int64_t tokens : {1, 2, 70}) {
        const std::string after = " tokens " + std::to_string(tokens);
        for (int64_t gates : {1, 64}) check(delta_net_agrees(tokens, gates, room), "delta net" + after);
        for (int64_t rows : {1, 8, 13}) check(scan_agrees(tokens, rows, room), "scan" + after);
        for (int64_t taps : {2, 3, 4}) check(convolution_agrees(tokens, taps, room), "convolution" + after);
    }
    std::printf("%s: %d differ\n", INSTRUCTION_SET, differing);
    return differing;
}
