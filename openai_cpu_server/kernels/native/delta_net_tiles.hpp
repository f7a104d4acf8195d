// The gated delta rule for 32 tokens at once, as products by AMX.
//
// With sums of gates G, what a token stores is u_i = b_i (v_i - e^G_i S k_i - the sum over j < i of e^(G_i - G_j) (k_i k_j) u_j),
// and reads is e^G_i S q_i + the sum over j <= i of e^(G_i - G_j) (q_i k_j) u_j, where S is the state before them. So u solves
// equations whose triangular matrix is the same for all rows of the state. It is inverted once, in floats; all else that
// grows with the width of the state is products of bf16, summed in floats, to which the state is rounded for them only.
// https://arxiv.org/abs/2412.06464
//
// Where a chunk begins changes its roundings. Tokens that are not finite spoil earlier ones of their chunk too.
#pragma once

#include "amx.hpp"
#include "words.hpp"

namespace recurrent {

constexpr int SIDE = amx::TILE_ROWS, CHUNK = 2 * SIDE, MOST_STEPS = 8;  // steps of 32 in the width of a state

// 32 rows of 32 bf16, or as many as fill steps of 32: tiles (half of the rows, step).
struct alignas(64) OneStep {
    uint8_t bytes[2 * amx::TILE_BYTES];
};
struct alignas(64) AllSteps {
    uint8_t bytes[2 * MOST_STEPS * amx::TILE_BYTES];
};
struct alignas(64) Square {
    float values[CHUNK][CHUNK];
};

// Inputs of a chunk that all rows of a state need. Matrices are second operands of products, in the order of a tile.
struct Chunk {
    int count;  // tokens; behind them are zeros, which store nothing
    const float* values[CHUNK];
    float* results[CHUNK];
    alignas(64) float decays[CHUNK], betas[CHUNK], decayed_betas[CHUNK];  // from the state before the chunk on
    float decay;                                                         // of the whole chunk
    AllSteps keys, queries;  // (token, column)
    AllSteps stored_keys;    // (column, token), decayed from the token on; pairs of columns' halves
    OneStep inverse, seen;   // (token, earlier token)
};

// to[i][j] = or += the sum of a[i] times b[j], for 32 i and j.
template <bool ADDS>
inline void multiply(const uint8_t* a, const uint8_t* b, int steps, float* to, int width = CHUNK) {
    const size_t half = size_t(steps) * amx::TILE_BYTES, stride = sizeof(float) * width;
    float* const lower = to + SIDE * width;
    if (ADDS) {
        amx::load<0>(to, stride), amx::load<1>(to + SIDE, stride);
        amx::load<2>(lower, stride), amx::load<3>(lower + SIDE, stride);
    } else {
        amx::zero<0>(), amx::zero<1>(), amx::zero<2>(), amx::zero<3>();
    }
    for (size_t at = 0; at < half; at += amx::TILE_BYTES) {
        amx::load<4>(a + at);
        amx::load<6>(b + at);
        amx::multiply_bf16<0, 4, 6>();
        amx::load<7>(b + half + at);
        amx::multiply_bf16<1, 4, 7>();
        amx::load<5>(a + half + at);
        amx::multiply_bf16<2, 5, 6>();
        amx::multiply_bf16<3, 5, 7>();
    }
    amx::store<0>(to, stride), amx::store<1>(to + SIDE, stride);
    amx::store<2>(lower, stride), amx::store<3>(lower + SIDE, stride);
}

inline uint16_t* row_of(uint8_t* tiles, int steps, int row, int step) {
    const int tile = row / SIDE * steps + step;
    return reinterpret_cast<uint16_t*>(tiles + tile * amx::TILE_BYTES + row % SIDE * 64);
}

// Converts first operands to second operands.
inline void turn(const uint8_t* from, int num_tiles, uint8_t* to) {
    for (int i = 0; i < num_tiles; ++i, from += amx::TILE_BYTES, to += amx::TILE_BYTES)
        tiles::transpose_16(reinterpret_cast<const uint32_t*>(from), SIDE, reinterpret_cast<uint32_t*>(to));
}

inline void transpose(const Square& from, Square& to) {
    for (int i = 0; i < CHUNK; i += SIDE)
        for (int j = 0; j < CHUNK; j += SIDE)
            tiles::transpose_16(reinterpret_cast<const uint32_t*>(&from.values[i][j]), CHUNK,
                                reinterpret_cast<uint32_t*>(&to.values[j][i]), CHUNK);
}

// As first operand.
inline void round(const Square& from, OneStep& to) {
    for (int i = 0; i < CHUNK; ++i) amx::store_bf16(row_of(to.bytes, 1, i, 0), from.values[i]);
}

struct Numbers {
    alignas(64) int32_t values[CHUNK] = {};
    constexpr Numbers() {
        for (int i = 0; i < CHUNK; ++i) values[i] = i;
    }
};
constexpr Numbers NUMBERS;

// A token's inputs, where they are.
struct Inputs {
    const float *query, *key;
    float gate;
};

// Needs `count`, `betas`, and the inputs of that many tokens.
class Preparation {
public:
    Preparation(Chunk& chunk, const Inputs* inputs, int width)
        : chunk_{chunk}, inputs_{inputs}, width_{width}, steps_{width / CHUNK} {
        sum_gates();
        AllSteps keys, queries;
        const float scale = 1.0F / std::sqrt(static_cast<float>(width));
        round_rows(keys, &Inputs::key, 1), round_rows(queries, &Inputs::query, scale);
        turn(keys.bytes, 2 * steps_, chunk.keys.bytes), turn(queries.bytes, 2 * steps_, chunk.queries.bytes);
        store_keys();
        Square by_key, by_query;
        multiply<false>(keys.bytes, chunk.keys.bytes, steps_, &by_key.values[0][0]);
        multiply<false>(queries.bytes, chunk.keys.bytes, steps_, &by_query.values[0][0]);
        decay(by_key, by_query);
        invert(by_key);
        OneStep rounded;
        round(by_key, rounded), turn(rounded.bytes, 2, chunk.inverse.bytes);
        round(by_query, rounded), turn(rounded.bytes, 2, chunk.seen.bytes);
    }

private:
    using floats = simd::floats;
    static constexpr int LANES = simd::LANES;

    void sum_gates() {
        constexpr float NOTHING = -128;  // its exponential is zero, so that differences of sums are numbers
        float sum = 0;
        for (int i = 0; i < CHUNK; ++i) {
            if (i < chunk_.count) sum += inputs_[i].gate < NOTHING ? NOTHING : inputs_[i].gate;
            sums_[i] = sum;
        }
        for (int i = 0; i < CHUNK; i += LANES) {
            const floats sums = simd::load(sums_ + i), decays = simd::exp(sums);
            simd::store(chunk_.decays + i, decays);
            simd::store(chunk_.decayed_betas + i, decays * simd::load(chunk_.betas + i));
            simd::store(left_ + i, simd::exp(simd::splat(sum) - sums));
        }
        chunk_.decay = chunk_.decays[CHUNK - 1];
    }

    void round_rows(AllSteps& to, const float* Inputs::*row, float factor) const {
        for (int i = 0; i < CHUNK; ++i)
            for (int step = 0; step < steps_; ++step) {
                uint16_t* tokens = row_of(to.bytes, steps_, i, step);
                if (i < chunk_.count) amx::store_bf16(tokens, inputs_[i].*row + step * CHUNK, factor);
                else std::memset(tokens, 0, 64);
            }
    }

    void store_keys() const {
        for (int i = 0; i < CHUNK; i += 2)
            for (int column = 0; column < width_; column += LANES) {
                const auto key = [&](int token) {
                    return token < chunk_.count ? left_[token] * simd::load(inputs_[token].key + column) : floats{};
                };
                uint8_t* tile = chunk_.stored_keys.bytes + column / SIDE * amx::TILE_BYTES;
                simd::store(reinterpret_cast<int32_t*>(tile + i / 2 * 64) + column % SIDE, amx::bf16_pairs(key(i), key(i + 1)));
            }
    }

    // Products of tokens become those with earlier tokens, by which a token stores less, and reads.
    void decay(Square& by_key, Square& by_query) const {
        for (int i = 0; i < CHUNK; ++i)
            for (int j = 0; j < CHUNK; j += LANES) {
                const simd::ints numbers = simd::load(NUMBERS.values + j), earlier = numbers < i, seen = numbers <= i;
                const floats decays = simd::exp(sums_[i] - simd::load(sums_ + j));
                const floats stored = chunk_.betas[i] * decays * simd::load(by_key.values[i] + j);
                const floats read = decays * simd::load(by_query.values[i] + j);
                simd::store(by_key.values[i] + j, earlier ? stored : floats{});
                simd::store(by_query.values[i] + j, seen ? read : floats{});
            }
    }

    // Inverts a matrix whose diagonal of ones is left out.
    static void invert(Square& matrix) {
        Square inverse;
        for (int i = 0; i < CHUNK; ++i) {
            floats even[CHUNK / LANES] = {}, odd[CHUNK / LANES] = {};
            for (int j = 0; j < i; ++j) {
                const floats factor = simd::splat(-matrix.values[i][j]);
                floats* sums = j % 2 ? odd : even;
                for (int part = 0; part < CHUNK / LANES; ++part)
                    sums[part] = simd::multiply_add(factor, simd::load(inverse.values[j] + part * LANES), sums[part]);
            }
            for (int part = 0; part < CHUNK / LANES; ++part)
                simd::store(inverse.values[i] + part * LANES, even[part] + odd[part]);
            inverse.values[i][i] = 1;
        }
        matrix = inverse;
    }

    Chunk& chunk_;
    const Inputs* inputs_;
    const int width_, steps_;
    alignas(64) float sums_[CHUNK], left_[CHUNK];
};

// Adds a chunk to 32 rows of a state, from `row` on, and stores the results of its queries.
inline void add(const Chunk& chunk, int64_t row, int width, const float* from, float* to) {
    using simd::floats, simd::LANES;
    const int steps = width / CHUNK;
    AllSteps state;
    for (int i = 0; i < CHUNK; ++i)
        for (int step = 0; step < steps; ++step) {
            const int first = i * width + step * CHUNK;
            amx::store_bf16(row_of(state.bytes, steps, i, step), from + first);
            for (int j = first; j < first + CHUNK; j += LANES) simd::store(to + j, chunk.decay * simd::load(from + j));
        }
    Square stored, read, values, turned;
    multiply<false>(state.bytes, chunk.keys.bytes, steps, &stored.values[0][0]);
    multiply<false>(state.bytes, chunk.queries.bytes, steps, &read.values[0][0]);
    for (int i = 0; i < CHUNK; ++i)
        if (i < chunk.count) std::memcpy(values.values[i], chunk.values[i] + row, sizeof values.values[i]);
        else std::memset(values.values[i], 0, sizeof values.values[i]);
    transpose(values, turned);
    for (int i = 0; i < CHUNK; ++i)
        for (int j = 0; j < CHUNK; j += LANES) {
            const floats wanted = simd::load(chunk.betas + j) * simd::load(turned.values[i] + j);
            const floats there = simd::load(chunk.decayed_betas + j) * simd::load(stored.values[i] + j);
            simd::store(stored.values[i] + j, wanted - there);
            simd::store(read.values[i] + j, simd::load(chunk.decays + j) * simd::load(read.values[i] + j));
        }
    OneStep rounded;
    round(stored, rounded);
    multiply<false>(rounded.bytes, chunk.inverse.bytes, 1, &stored.values[0][0]);
    round(stored, rounded);
    multiply<true>(rounded.bytes, chunk.seen.bytes, 1, &read.values[0][0]);
    for (int step = 0; step < steps; ++step)
        multiply<true>(rounded.bytes, chunk.stored_keys.bytes + 2 * step * amx::TILE_BYTES, 1, to + step * CHUNK, width);
    transpose(read, turned);
    for (int i = 0; i < chunk.count; ++i) std::memcpy(chunk.results[i] + row, turned.values[i], sizeof turned.values[i]);
}

}  // namespace recurrent
