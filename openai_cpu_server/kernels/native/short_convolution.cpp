// Convolutions over the last few tokens, with the nodes before and behind: ggml puts states and inputs into one
// matrix whose rows are channels, which takes most of the time. Here inputs are read where they are, channels side by
// side.
#include <algorithm>
#include <cstring>

#include "recurrent.hpp"
#include "simd.hpp"

namespace recurrent {
namespace {

using namespace simd;

constexpr int BLOCK = 512;  // most channels of a piece: side by side in memory
constexpr int RUN = 64;     // most tokens of a piece
constexpr int PIECES = 4;   // for each thread, if there is enough work

template <int TAPS>
class ShortConvolution : public Task {
public:
    explicit ShortConvolution(Convolution of) : of_{std::move(of)} {}

    void compute(const ggml_compute_params& params) const override {
        const int64_t least = 128, wide = of_.channels / PIECES / params.nth / 16 * 16;
        const int64_t block = of_.tokens < RUN ? std::clamp<int64_t>(wide, least, BLOCK) : BLOCK;
        const int64_t blocks = (of_.channels + block - 1) / block, runs = (of_.tokens + RUN - 1) / RUN;
        const int64_t count = blocks * runs;
        for (int64_t i = count * params.ith / params.nth; i < count * (params.ith + 1) / params.nth; ++i)
            compute_piece(i % blocks * block, block, i / blocks * RUN);
    }

private:
    // A row of channels for each tap, or each token of a state.
    using Columns = float[TAPS][BLOCK];

    void compute_piece(int64_t channel, int64_t block, int64_t start) const {
        const int width = static_cast<int>(std::min(block, of_.channels - channel));
        const int64_t end = std::min(start + RUN, of_.tokens);
        alignas(64) Columns weights, state;
        transpose<TAPS>(of_.weights + channel * TAPS, width, weights);
        for (int64_t sequence = 0; sequence < of_.sequences; ++sequence) {
            const Inputs inputs{*this, sequence, channel, state};
            if (start == 0) transpose<TAPS - 1>(of_.states[sequence] + channel * (TAPS - 1), width, state);
            for (int64_t token = start; token < end; ++token) compute_token(inputs, token, width, weights);
            if (start == 0) keep(inputs, width);
        }
    }

    // From (channels, tokens) to (tokens, channels).
    template <int COUNT>
    static void transpose(const float* from, int width, Columns& to) {
        for (int i = 0; i < width; ++i)
            for (int column = 0; column < COUNT; ++column) to[column][i] = from[i * COUNT + column];
    }

    // Tokens of one sequence. Tokens before its first are in the state, which only the first piece has.
    struct Inputs {
        const ShortConvolution& convolution;
        int64_t sequence, channel;
        const Columns& state;

        const float* at(int64_t token) const {
            if (token < 0) return state[token + TAPS - 1];
            const Convolution& of = convolution.of_;
            const size_t offset = token * of.token_stride + sequence * of.sequence_stride;
            return reinterpret_cast<const float*>(of.inputs + offset) + channel;
        }
    };

    void compute_token(const Inputs& inputs, int64_t token, int width, const Columns& weights) const {
        const float* taps[TAPS];
        for (int tap = 0; tap < TAPS; ++tap) taps[tap] = inputs.at(token - (TAPS - 1) + tap);
        const float* bias = of_.bias ? of_.bias + inputs.channel : nullptr;
        float* result = of_.result + (inputs.sequence * of_.tokens + token) * of_.channels + inputs.channel;
        for (int i = 0; i < width; i += LANES) {
            floats sum = load(weights[0] + i) * load(taps[0] + i);
            for (int tap = 1; tap < TAPS; ++tap) sum = multiply_add(load(weights[tap] + i), load(taps[tap] + i), sum);
            if (bias) sum += load(bias + i);
            if (of_.has_silu) sum = sum / (1.0F + simd::exp(-sum));
            store(result + i, sum);
        }
    }

    void keep(const Inputs& inputs, int width) const {
        for (const Convolution::Kept& kept : of_.kept) {
            float* to = kept.to.row(inputs.sequence) + inputs.channel * (TAPS - 1);
            const float* columns[TAPS];
            for (int i = 0; i < TAPS - 1; ++i) columns[i] = inputs.at(kept.column + i - (TAPS - 1));
            for (int i = 0; i < width; ++i)
                for (int column = 0; column < TAPS - 1; ++column) to[i * (TAPS - 1) + column] = columns[column][i];
        }
    }

    Convolution of_;
};

class Copies : public Task {
public:
    Copies(std::vector<Copy> rows, int64_t width) : rows_{std::move(rows)}, width_{width} {}

    void compute(const ggml_compute_params& params) const override {
        const int64_t first = width_ * params.ith / params.nth, last = width_ * (params.ith + 1) / params.nth;
        for (const Copy& row : rows_) std::memcpy(row.to + first, row.from + first, sizeof(float) * (last - first));
    }

private:
    std::vector<Copy> rows_;
    int64_t width_;
};

}  // namespace

bool is_known_convolution(int64_t taps, int64_t channels) { return taps >= 2 && taps <= 4 && channels % 16 == 0; }

std::unique_ptr<Task> convolution(Convolution convolution) {
    switch (convolution.taps) {
        case 2: return std::make_unique<ShortConvolution<2>>(std::move(convolution));
        case 3: return std::make_unique<ShortConvolution<3>>(std::move(convolution));
        default: return std::make_unique<ShortConvolution<4>>(std::move(convolution));
    }
}

std::unique_ptr<Task> copies(std::vector<Copy> rows, int64_t width) {
    return std::make_unique<Copies>(std::move(rows), width);
}

}  // namespace recurrent
